from __future__ import annotations

import pandas as pd
import pytest

from tests.analysis.figures.drawing import draw
from tests.rows import found


@pytest.mark.parametrize(("data", "published"), [("mnist", [[1.40], [1.82]]), ("toys", [])])
def test_mean_sizes_are_drawn_beside_the_papers_where_the_dataset_is_the_same(data, published):
    parts = [found([1.0, 2.0], model="cnn"), found([2.0, 3.0], model="capsules"), found([2.0, 3.0], norm="linf")]
    frame = pd.concat(parts).assign(data=data)
    (axis,) = draw(frame, published=True)["means"].axes
    ours = [bars.lines[0].get_ydata().tolist() for bars in axis.containers]
    assert ours == [[1.5], [2.5]]
    beside = [line.get_ydata() for line in axis.lines if line.get_marker() in ("x", "D")]
    assert [list(values) for values in beside] == published
    assert "means" not in draw(frame)
