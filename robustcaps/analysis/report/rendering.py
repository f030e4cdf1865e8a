"""Templates to pages: every value is escaped, all scripts and styles are inline, and nothing may be requested."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from robustcaps.utils.printable import printable

FOLDER = Path(__file__).parent
ESCAPES = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}
"""Inside JSON these characters only occur in strings; escaped, they cannot end a script."""


def render(
    template: str, *, with_charts: bool = False, with_gallery: bool = False, images: str = "data:", **values: Any
) -> str:
    """Return a page; the library of the charts takes a megabyte and is left out where there are none."""
    scripts = [_script(name) for name in ("page.js", *(("gallery.js",) if with_gallery else ()))]
    scripts += [_chart_library(), _script("charts.js")] if with_charts else []
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(each.encode()).digest()).decode()}'" for each in scripts
    )
    policy = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src {images}"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        finalize=_without_control_characters,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["script_json"] = script_json
    style = Markup((FOLDER / "page.css").read_text(encoding="utf-8"))  # noqa: S704  our own
    inline = [Markup(script) for script in scripts]  # noqa: S704  our own, and the chart library's
    return environment.get_template(template).render(style=style, scripts=inline, policy=policy, **values)


def script_json(value: Any) -> Markup:
    """Return a value as JSON that is safe inside a script element, whatever its strings are."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Markup(text.translate(ESCAPES))  # noqa: S704  no character of it can end the element


def _script(name: str) -> str:
    return _inlined((FOLDER / name).read_text(encoding="utf-8"))


@cache
def _chart_library() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script."""
    import vl_convert  # noqa: PLC0415  it starts a JavaScript engine

    return _inlined(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


def _inlined(script: str) -> str:
    """Return a script that cannot end the element it stands in."""
    return script.replace("\r\n", "\n").replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _without_control_characters(value: object) -> object:
    """Return a value of a page with control characters as escapes; markup of our own stays as it is."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def drawings(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield (name, data URL) of the SVG files in a folder; as images, they cannot run scripts or load anything."""
    for path in sorted(folder.glob("*.svg")):
        yield path.stem, "data:image/svg+xml;base64," + base64.b64encode(path.read_bytes()).decode()
