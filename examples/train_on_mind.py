"""Train on a folder in MIND's format and write the leaderboard's file.

MIND (https://msnews.github.io) is two folders with news.tsv and behaviors.tsv each; put them side by side as
MINDsmall/train and MINDsmall/dev, then:

python examples/train_on_mind.py MINDsmall runs/mind
"""

import argparse
from dataclasses import replace
from pathlib import Path

import speedyfeed
from speedyfeed.cli.main import main as command
from speedyfeed.progress import progress_bars


def main() -> None:
    """Prepare, train with a limit of time, evaluate every metric, rank dev."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("logs", type=Path, help="folder with train/ and dev/")
    parser.add_argument("out", type=Path, help="folder for the store, the run and prediction.zip")
    parser.add_argument("--encoder", default="minilm", help="pretrained encoder: minilm, a folder or a Hub id")
    parser.add_argument("--minutes", type=float, default=30, help="training time")
    options = parser.parse_args()
    store, run = options.out / "store", options.out / "run"

    prepare_config = speedyfeed.PrepareConfig(encoder=options.encoder)
    default = speedyfeed.recipe("speed-mini")
    config = replace(
        default,
        news=replace(default.news, encoder=options.encoder),
        train=replace(default.train, minutes=options.minutes),
    )
    with progress_bars() as progress:
        speedyfeed.prepare(options.logs, store, prepare_config, progress=progress)
        speedyfeed.train(store, run, config, progress=progress)
        report = speedyfeed.evaluate(run, progress=progress)
    for name, found in report.overall.metrics.items():
        print(f"{name:12} {found.mean:.4f}   95% {found.ci95[0]:.4f} to {found.ci95[1]:.4f}")

    command(["rank", str(run), str(options.logs), str(options.out / "prediction.zip"), "--split", "dev"])


if __name__ == "__main__":
    main()
