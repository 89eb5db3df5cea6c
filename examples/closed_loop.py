"""The loop from feed to training and back: serve, click by script, export, prepare, warm start, reload.

Users who read travel click every sports story they are shown, and no travel: the next model knows.
python examples/closed_loop.py runs/loop
"""

import argparse
import json
import threading
from dataclasses import replace
from pathlib import Path
from urllib.request import Request, urlopen

import uvicorn

import speedyfeed
from speedyfeed.serving.app import build_app
from speedyfeed.serving.connections import open_listeners
from speedyfeed.serving.middleware import WriteAccess
from speedyfeed.serving.service import Service

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folder", type=Path, help="where logs, stores and runs go")
parser.add_argument("--encoder", default="minilm", help="pretrained encoder: minilm, a folder or a Hub id")
options = parser.parse_args()
folder, recipe = options.folder, speedyfeed.recipe("speed-mini")
config = replace(recipe, news=replace(recipe.news, encoder=options.encoder))

speedyfeed.synthesize(folder / "logs", speedyfeed.SynthConfig(users=300, news=600))
store = speedyfeed.prepare(folder / "logs", folder / "store", speedyfeed.PrepareConfig(encoder=options.encoder))
speedyfeed.train(store.path, folder / "old", replace(config, train=replace(config.train, steps=0, validations=0)))
(folder / "current").symlink_to("old")
service = Service(folder / "current", folder / "feed")
service.open()
listeners = open_listeners("127.0.0.1", 0)
server = uvicorn.Server(uvicorn.Config(build_app(service, WriteAccess(None, "127.0.0.1")), log_level="error"))
threading.Thread(target=server.run, args=[listeners], daemon=True).start()


def post(path: str, **body: object) -> dict:
    address = f"http://127.0.0.1:{listeners[0].getsockname()[1]}/v1/{path}"
    return json.load(urlopen(Request(address, json.dumps(body).encode(), {"content-type": "application/json"})))


travel = [one["news_id"] for one in store.load_titles().to_pylist() if one["category"] == "travel"]
query = {"history": travel[-15:], "k": 20, "categories": ["travel", "sports"], "diversity": 0}
before = post("recommend", **query)
for user in range(400):
    history = [travel[(3 * user + position) % (len(travel) - 15)] for position in range(3)]
    shown = post("recommend", **{**query, "history": history, "k": 10, "diversity": 0.9})["news"]
    actions = {one["news_id"]: "click" if one["category"] == "sports" else "skip" for one in shown}
    post("feedback", user=f"user-{user}", history=history, actions=actions)
speedyfeed.prepare(folder / "feed" / post("feedback/export")["folder"], folder / "store-2", like=store.path)
trained = replace(config, train=replace(config.train, epochs=8, validations=0))
speedyfeed.train(folder / "store-2", folder / "new", trained, warm_start=folder / "old")
(folder / "current").unlink()
(folder / "current").symlink_to("new")
post("reload")
for when, answer in (("before", before), ("after", post("recommend", **query))):
    print(f"{when}: {[one['category'] for one in answer['news']].count('sports')} of the first 20 are sports")
