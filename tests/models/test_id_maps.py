"""Names as indices."""

import warnings

import pyarrow as pa
import torch

from speedyfeed.models.id_maps import lookup_indices


def test_indices_become_a_tensor_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for names in (pa.array(["b", "x", "a"]), pa.chunked_array([["b"], ["x", "a"]])):
            assert torch.from_numpy(lookup_indices(names, ["a", "b"])).tolist() == [2, 0, 1]
