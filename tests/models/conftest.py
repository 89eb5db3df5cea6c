import os

import torch

os.environ["HF_HUB_OFFLINE"] = "1"  # no test may download anything
torch.set_num_threads(1)  # tiny models: more threads only wait for each other, under pytest -n all the more
