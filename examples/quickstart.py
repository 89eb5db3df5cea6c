"""From logs to recommendations in five calls, on a synthetic newsroom.

python examples/quickstart.py runs/quickstart
"""

import argparse
from dataclasses import replace
from pathlib import Path

import speedyfeed


def main() -> None:
    """Make a newsroom, prepare it, train on it, evaluate the run and recommend."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where logs, store and run go")
    parser.add_argument("--encoder", default="minilm", help="pretrained encoder: minilm, a folder or a Hub id")
    parser.add_argument("--users", type=int, default=1000, help="users of the newsroom")
    parser.add_argument("--steps", type=int, default=40, help="training steps")
    options = parser.parse_args()
    logs, store, run = (options.folder / name for name in ("logs", "store", "run"))

    speedyfeed.synthesize(logs, speedyfeed.SynthConfig(users=options.users, news=options.users))
    speedyfeed.prepare(logs, store, speedyfeed.PrepareConfig(encoder=options.encoder))

    default = speedyfeed.recipe("speed-mini")
    config = replace(
        default,
        news=replace(default.news, encoder=options.encoder),
        train=replace(default.train, steps=options.steps, validations=1),
    )
    outcome = speedyfeed.train(store, run, config)
    print(f"{outcome.progress.clicks:,} clicks in {outcome.progress.seconds:.0f} seconds")

    auc = speedyfeed.evaluate(run).overall.metrics["auc"]
    print(f"AUC {auc.mean:.4f}, 95% {auc.ci95[0]:.4f} to {auc.ci95[1]:.4f}")

    model = speedyfeed.Recommender.from_pretrained(run)
    assert model.catalogue is not None
    history = list(model.catalogue.news_ids[:3])
    for found in model.recommend(history, k=5):
        print(f"{found.score:6.3f}  {found.category:14} {found.title}")


if __name__ == "__main__":
    main()
