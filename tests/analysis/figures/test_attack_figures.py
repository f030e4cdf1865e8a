from __future__ import annotations

import pandas as pd

from robustcaps.analysis.figures.robust_auc import draw_auc
from tests.analysis.claims.published_tables import auc_of
from tests.analysis.figures.drawing import draw
from tests.rows import attacked


def test_there_is_a_figure_for_all_that_was_found():
    frame = pd.concat(
        [
            attacked("one", 0.1, [True, False, False, True]),
            attacked("one", 0.2, [True, False, False, True]),
            attacked("cw", 0.2, [True, True, False, True], closest=True),
            attacked("transfer a", 0.2, [True, True, False, True], surrogate="a"),
            attacked("aimed", 0.2, [True, True, False, True], goal="targeted", target=1),
        ]
    )
    figures = draw(frame)
    assert list(figures) == ["accuracy", "cost", "distances", "transfer", "targets"]
    (survivors,) = [line for line in figures["distances"].axes[0].lines if len(line.get_xdata()) > 1]
    assert survivors.get_ydata().tolist() == [1, 0.75, 0.5, 0.25]
    assert [text.get_text() for text in figures["transfer"].axes[0].texts] == ["75"]


def test_targeted_attacks_alone_have_no_figure_of_cost():
    frame = pd.concat([attacked(name, 0.1, [True] * 4, goal="targeted", target=1) for name in ("a", "b")])
    assert list(draw(frame)) == ["targets"]


def test_a_title_is_broken_where_it_is_wider_than_the_figure():
    table = auc_of({"uniform": 0.4, "dynamic": 0.5})
    figure = draw_auc(table)
    figure.canvas.draw()
    (title,) = (text for text in figure.texts if text.get_text() == figure.get_suptitle())
    box = title.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.width and "differs from 'uniform'" in title.get_text()
