"""Train every night while the service goes on answering: a week of a newsroom, a rolling window, warm starts.

python examples/nightly.py runs/nightly
"""

import atexit
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from urllib.request import Request, urlopen

import duckdb
import tyro

from speedyfeed import PrepareConfig, SynthConfig, evaluate, prepare, recipe, synthesize, train

LOG = """COPY (SELECT * EXCLUDE (history, before), coalesce(before, []) AS history FROM shown LEFT JOIN
    (SELECT user_id, list(id ORDER BY time) AS before FROM (SELECT *, unnest(clicked) AS id FROM shown)
    WHERE time < '{start}' GROUP BY user_id) USING (user_id) WHERE time >= '{start}' AND time < '{end}')
    TO '{path}/impressions.parquet'; COPY (SELECT DISTINCT ON (news_id) * EXCLUDE body FROM '{logs}/*/news.parquet'
    WHERE news_id IN (SELECT unnest(candidates) FROM shown WHERE time < '{end}')) TO '{path}/news.parquet'"""


def main(folder: Path, encoder: str = "minilm", users: int = 4000, days: int = 7, port: int = 8000) -> None:
    """Serve a newsroom for days and train in the night before each, after the first from the model before."""
    logs = folder / "logs"
    synthesize(logs, SynthConfig(users=users, news=users, format="parquet"))
    duckdb.execute(f"CREATE TABLE shown AS FROM '{logs}/*/impressions.parquet'")
    (last_day,) = duckdb.execute("SELECT max(time)::DATE FROM shown").fetchone()
    for night in range(days):
        began, today = time.perf_counter(), last_day - timedelta(days - 1 - night)
        window, day, store, run = (folder / f"{name}-{night}" for name in ("window", "day", "store", "run"))
        for path, *days_from_now in ((window / "train", -3, 0), (day / "test", 0, 1)):
            path.mkdir(parents=True)
            start, end = (today + timedelta(number) for number in days_from_now)
            duckdb.execute(LOG.format(path=path, logs=logs, start=start, end=end))
        like, earlier = (folder / f"{name}-{night - 1}" if night else None for name in ("store", "run"))
        text = {} if night else {"encoder": encoder}  # that of the store before, otherwise
        prepare(window, store, PrepareConfig(validation=0, **text), like=like)
        length = {"epochs": 1, "encoder_lr": 0} if night else {"epochs": 3}  # later, the language model is frozen
        settings = recipe("speed-mini", encoder=encoder, validations=0, loss={"bias_start": 1}, **length)
        train(store, run, settings, warm_start=earlier)
        (folder / "next").symlink_to(run.name)
        (folder / "next").replace(folder / "current")  # at every moment the link leads to a run
        if not night:
            command = [sys.executable, "-m", "speedyfeed", "serve", folder / "current", f"--port={port}"]
            service = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
            atexit.register(service.kill)
            print(next(line for line in service.stderr if line.startswith("serving at")), end="")
        else:
            urlopen(Request(f"http://127.0.0.1:{port}/v1/reload", method="POST")).close()
        minutes = (time.perf_counter() - began) / 60
        nightly, once = (evaluate(one, day).overall.metrics["auc"] for one in (run, folder / "run-0"))
        print(f"{today}: AUC {nightly.mean:.4f}, trained once {once.mean:.4f}, {minutes:.1f} minutes", flush=True)


if __name__ == "__main__":
    tyro.cli(main, config=(tyro.conf.PositionalRequiredArgs,))
