from __future__ import annotations

import dataclasses

import pytest

from isthmus.models import DECODERS, ENCODERS, GNNS, READOUTS

TABLES = {"gnns": GNNS, "encoders": ENCODERS, "decoders": DECODERS, "readouts": READOUTS}


@pytest.mark.parametrize("table", sorted(TABLES))
def test_tables_hold_frozen_specs_that_compare_by_value(table: str) -> None:
    for kind in TABLES[table].values():
        assert dataclasses.is_dataclass(kind) and kind() == kind() and hash(kind()) == hash(kind())
        for field in dataclasses.fields(kind):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(kind(), field.name, getattr(kind(), field.name))


def test_names() -> None:
    without_bias = {f"bias_free_{name}" for name in ("mlp", "appnp", "gcn", "sage", "gat")}
    assert set(GNNS) == {"mlp", "gcn", "sage", "gat", "gin", "gprgnn", "appnp", "sgc", "gap", "progap"} | without_bias
    assert set(ENCODERS) == {"linear", "mlp", "categorical"}
    assert set(DECODERS) == {"linear", "mlp", "dot", "distmult", "bilinear", "hadamard_mlp"}
    assert set(READOUTS) == {"mean", "sum", "max", "set2set"}
