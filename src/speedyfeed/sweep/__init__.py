"""Several variants over several seeds on one store: trained, evaluated, and summarised in one table.

variants.py     names on the command line -> runs
trials.py       one variant with one seed: trained, evaluated, stored in a folder of its own
references.py   what the trained runs are shown beside: chance, popularity, best possible
summary.py      means, deviations and paired differences over seeds
table.py        all of it as one table
figures.py      AUC over time, and at the end
"""
