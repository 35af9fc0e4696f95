"""What is seen of a study while it goes on."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from isthmus.cli.live_study import SHOWN, LiveStudy
from isthmus.tune.spec import Budget
from isthmus.tune.table import Row, Table, Trial
from tests.tune.test_running import study


def seen(live: LiveStudy) -> str:
    console = Console(width=160, record=True, file=None, quiet=False, force_terminal=False)
    with console.capture() as captured:
        console.print(live.drawn())
    return captured.get()


def test_the_best_so_far_stand_above_a_bar_by_what_is_used_up_first() -> None:
    made = replace(study(), budget=Budget(trials=100, client_rounds=80))
    live = LiveStudy(made, silent=True)
    assert "algorithm" not in seen(live) and "mine" in seen(live)
    rows: list[Row] = []
    for arm in range(8):
        rows.append(Row(Trial(arm, made.table().drawn(arm), 0), True, (arm / 10,), (arm / 10,), cost=5.0))
        live.told(rows[-1], made.table(tuple(rows)))
    text = seen(live)
    assert "algorithm.local_steps" in text and "7 after 3 rounds: 0.7000" in text and "50%" in text
    shown = [line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│")]
    assert shown == ["7", "6", "5", "4", "3"] and len(shown) == SHOWN
    live.told(Row(Trial(8, {}, 0), True, (float("nan"),), (), error="it [broke]\nlater"), Table(made.space, made.rungs))
    assert "8 after 3 rounds: it [broke]" in seen(live)
    live.say("the best course with seed 7")
    assert "the best course with seed 7" in seen(live)


def test_without_a_budget_the_bar_has_no_end() -> None:
    made = study()
    live = LiveStudy(made, silent=True)
    row = Row(Trial(0, made.table().drawn(0), 0), True, (0.5,), (0.5,), cost=5.0)
    live.told(row, made.table((row,)))
    assert live.bar.tasks[0].total is None
    with live:
        live.told(row, made.table((row,)))
    assert not live.table.rows  # what is left on the screen are the results, once
