"""What tests ask of a picture: where its texts are, and whether one lies over another."""

import itertools

from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from dipaco.topology import PER_PATH, Level, Topology


def texts_of(figure: Figure) -> list[Text]:
    """All texts that can be seen."""
    found = figure.findobj(Text)
    return [text for text in found if text.get_visible() and text.get_text().strip()]


def boxes_of(figure: Figure) -> dict[Text, Bbox]:
    """The box of each text, in pixels; those of ticks outside their axis are left out."""
    figure.draw_without_rendering()
    outside = {
        label
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())
        for label in (tick.label1, tick.label2)
        if not _low(axis) <= tick.get_loc() <= _high(axis) or not axes.axison
    }
    return {text: text.get_window_extent() for text in texts_of(figure) if text not in outside}


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of texts of which one lies over the other, by more than a pixel."""
    boxes = {text: box.padded(-1) for text, box in boxes_of(figure).items()}
    return [
        (one.get_text(), other.get_text())
        for one, other in itertools.combinations(boxes, 2)
        if boxes[one].overlaps(boxes[other])
    ]


def cut_off(figure: Figure) -> list[str]:
    """Texts that are partly outside the picture."""
    page = figure.bbox.padded(1)
    return [
        text.get_text()
        for text, box in boxes_of(figure).items()
        if box.x0 < page.x0 or box.x1 > page.x1 or box.y0 < page.y0 or box.y1 > page.y1
    ]


def assert_can_be_read(figure: Figure) -> None:
    assert overlapping(figure) == []
    assert cut_off(figure) == []


def grid(*experts: int, has_own: bool = True) -> Topology:
    """Levels with so many experts, and one with a module for each path."""
    levels = [
        Level(name=f"level_{number}", parts=(f"part_{number}",), experts=count)
        for number, count in enumerate(experts)
    ]
    own = [Level(name="own", parts=("own",), experts=PER_PATH)] * has_own
    return Topology(levels=(*levels, *own))


def _low(axis) -> float:
    return min(axis.get_view_interval())


def _high(axis) -> float:
    return max(axis.get_view_interval())
