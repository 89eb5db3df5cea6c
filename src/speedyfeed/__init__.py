"""SpeedyFeed: news recommenders with a pretrained language model in the loop, trained end to end, fast."""

__version__ = "0.1.0"
