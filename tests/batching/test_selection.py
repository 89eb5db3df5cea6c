import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from speedyfeed.batching.selection import BLOCK_ROWS, Selection


@given(
    st.lists(st.tuples(st.integers(0, 3 * BLOCK_ROWS), st.sampled_from([0.0, 0.01, 0.5, 1.0])), max_size=3),
    st.integers(0, 99),
)
def test_found_rows_are_those_selected_in_order(parts, seed):
    rng = np.random.default_rng(seed)
    masks = [rng.random(length // BLOCK_ROWS * BLOCK_ROWS) < share for length, share in parts[:-1]]
    masks += [rng.random(length) < share for length, share in parts[-1:]]
    rows = np.flatnonzero(np.concatenate([np.zeros(0, bool), *masks]))
    selection = Selection(masks)
    assert len(selection) == len(rows)
    numbers = rng.permutation(len(rows))
    assert selection.find(numbers).tolist() == rows[numbers].tolist()


def test_a_row_costs_a_seventh_of_a_byte():
    selection = Selection([np.ones(1 << 16, bool)] * 4)
    assert (selection._bits.nbytes + selection._before.nbytes) / (4 << 16) < 1 / 7
