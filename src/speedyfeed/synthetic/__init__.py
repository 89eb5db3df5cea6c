"""A synthetic newsroom: planted interests, real words, and a known best possible score."""

from speedyfeed.synthetic.figures import Figure
from speedyfeed.synthetic.ladder import Rung
from speedyfeed.synthetic.newsroom import Newsroom, SynthConfig, synthesize

__all__ = ["Figure", "Newsroom", "Rung", "SynthConfig", "synthesize"]
