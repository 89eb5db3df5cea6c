"""Names of all benchmarks, and what each measures."""

BENCHES = {
    "speedup": "how many times as fast a click is learned as conventionally, and what each technique gives",
    "step": "where the time of a training step goes",
    "data-efficiency": "how much of what is encoded is padding",
    "encoder": "the packed encoder against the stock padded one, and the share of the machine's peak",
    "bus": "what segments cost: time and memory",
    "prepare": "how fast logs become a store, at three sizes",
    "loader": "batches against the trainer's appetite, the cost of a click and memory, at three sizes",
    "recall": "graphs against exact search, at three sizes",
    "serve": "what the service bears",
    "quality": "the main table: baselines and ours, over seeds",
    "cache": "what gamma costs and gives: quality, time, hit rate, drift",
    "ablation": "the same recommender without bus, cache or refinement",
    "ranks": "what a step costs on 1, 2 and 4 ranks, and would cost on many devices",
    "kills": "a rank killed again and again: what it costs, and that nothing is lost",
    "all": "all of these, as one report with figures",
}
