"""The loop from feed to training and back: serve, click by script, export, prepare, warm start, reload."""

import argparse
import json
import threading
from pathlib import Path
from urllib.request import Request, urlopen

import uvicorn

import speedyfeed
from speedyfeed.serving.app import build_app
from speedyfeed.serving.listeners import open_listeners
from speedyfeed.serving.middleware import WriteAccess
from speedyfeed.serving.service import Service

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folder", type=Path, help="where logs, stores and runs go")
parser.add_argument("--encoder", default="minilm", help="pretrained encoder: minilm, a folder or a Hub id")
folder, encoder = vars(parser.parse_args()).values()
model = {"name": "speed-mini", "encoder": encoder, "validations": 0}
speedyfeed.synthesize(folder / "logs", speedyfeed.SynthConfig(users=300, news=600))
store = speedyfeed.prepare(folder / "logs", folder / "store", speedyfeed.PrepareConfig(encoder=encoder))
travel = [one["news_id"] for one in store.load_titles().to_pylist() if one["category"] == "travel"]
speedyfeed.train(store.path, folder / "old", speedyfeed.recipe(**model, steps=0))
(folder / "current").symlink_to("old")
query = {"categories": ["travel", "sports"]}
service = Service(folder / "current", folder / "feed")
service.open()
listeners = open_listeners("127.0.0.1", 0)
settings = uvicorn.Config(build_app(service, WriteAccess(None, "127.0.0.1")), log_level="error")
threading.Thread(target=uvicorn.Server(settings).run, args=[listeners], daemon=True).start()


def post(path: str, **body: object) -> dict:
    address = f"http://127.0.0.1:{listeners[0].getsockname()[1]}/v1/{path}"
    return json.load(urlopen(Request(address, json.dumps(body).encode(), {"content-type": "application/json"})))


def count_sports() -> float:
    readers = [travel[first : first + 15] for first in range(len(travel) - 15)]
    lists = [post("recommend", history=history, k=20, diversity=0, **query)["news"] for history in readers]
    return sum(one["category"] == "sports" for news in lists for one in news) / len(lists)


before = count_sports()
for user in range(400):  # users of travel, who click every sports story they are shown, and no travel
    history = [travel[(3 * user + position) % (len(travel) - 15)] for position in range(3)]
    shown = post("recommend", history=history, k=10, diversity=0.9, **query)["news"]
    actions = {one["news_id"]: "click" if one["category"] == "sports" else "skip" for one in shown}
    post("feedback", user=f"user-{user}", history=history, actions=actions)
speedyfeed.prepare(folder / "feed" / post("feedback/export")["folder"], folder / "store-2", like=store.path)
again = speedyfeed.recipe(**model, epochs=8)
speedyfeed.train(folder / "store-2", folder / "new", again, warm_start=folder / "old")
(folder / "current").unlink()
(folder / "current").symlink_to("new")
post("reload")
print(f"sports among the first 20 of a reader of travel: {before:.1f} before, {count_sports():.1f} after")
