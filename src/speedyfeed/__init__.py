"""SpeedyFeed: news recommenders with a pretrained language model in the loop, trained end to end, fast."""

import os

__version__ = "0.1.0"

# Every batch has its own number of tokens, and oneDNN, which multiplies in bf16 on CPUs, would keep 1,024 kernels
# made for them: memory would grow for hours. It is told as torch is loaded, so this stands here.
for _name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_name, "256")
