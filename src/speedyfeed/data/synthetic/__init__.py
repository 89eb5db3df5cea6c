"""A synthetic newsroom: planted interests, real words, and a known best score."""

from speedyfeed.data.synthetic.figures import Figure
from speedyfeed.data.synthetic.newsroom import Newsroom, SynthConfig, synthesize

__all__ = ["Figure", "Newsroom", "SynthConfig", "synthesize"]
