"""SVGs of matplotlib in less than half of their bytes, with the same picture."""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path
from xml.etree import ElementTree as Tree

SVG = "http://www.w3.org/2000/svg"
LINK = "{http://www.w3.org/1999/xlink}href"
# What stands between the parts of these is no text
HOLDERS = {f"{{{SVG}}}{name}" for name in ("g", "use", "defs", "clipPath", "svg")}


def shorten(file: Path) -> None:
    """Write an SVG anew: with few decimals, styles as classes, and short names for what is referred to."""
    root = Tree.parse(file).getroot()
    for element in root.iter():
        element.tail = None
        if element.tag in HOLDERS:
            element.text = None
        if LINK in element.attrib:
            element.set("href", element.attrib.pop(LINK))
    _name_shortly(root)
    classes: dict[str, str] = {}
    for element in root.iter():
        if style := element.attrib.pop("style", None):
            element.set("class", classes.setdefault(style, f"c{len(classes)}"))
    sheet = next(root.iter(f"{{{SVG}}}style"))
    sheet.text = f"{sheet.text}{''.join(f'.{name}{{{style}}}' for style, name in classes.items())}"
    _round(root)
    Tree.register_namespace("", SVG)
    text = Tree.tostring(root, encoding="unicode").replace(" />", "/>")
    file.write_text(re.sub(r"(?<=>)(?=<(?:g|use|path|image|text)[ >])", "\n", text) + "\n")


def _name_shortly(root: Tree.Element) -> None:
    """Give short names to what is referred to, and none to what is not."""
    used = dict.fromkeys(re.findall(r'(?:href="#|url\(#)([^")]+)', Tree.tostring(root, encoding="unicode")))
    names = {name: f"n{number:x}" for name, number in zip(used, count(), strict=False)}
    for element in root.iter():
        name = element.attrib.pop("id", None)
        if name in names:
            element.set("id", names[name])
        for key, value in element.attrib.items():
            referred = r"(?:(?<=^#)|(?<=url\(#))[^)]+"  # in styles, too, but not their colours
            element.set(key, re.sub(referred, lambda found: names.get(found[0], found[0]), value))


def _round(root: Tree.Element) -> None:
    """Write coordinates on the page with one decimal, those of markers with two, and paths step by step."""
    small = {element for defined in root.iter(f"{{{SVG}}}defs") for element in defined.iter()}
    for element in root.iter():
        digits = 2 if element in small else 1
        if "d" in element.attrib:
            element.set("d", re.sub(r"(?<![\d.])0\.", ".", _steps(element.attrib["d"], digits)))
        for name in {"x", "y", "transform"} & set(element.attrib):
            element.set(name, re.sub(r"(\d{2,}\.\d)\d+", r"\1", element.attrib[name]))


def _steps(path: str, digits: int) -> str:
    """Return a path of matplotlib's with each point told from the one before."""
    parts, here, start = [], (0.0, 0.0), (0.0, 0.0)
    for command, numbers in re.findall(r"([MLQCz])([^MLQCz]*)", path):
        values = [round(float(number), digits) for number in numbers.split()]
        points = list(zip(values[::2], values[1::2], strict=True))
        moves = [value - here[axis] for point in points for axis, value in enumerate(point)]
        told = [_number(move, digits) for move in moves]
        if command == "L" and "0" in told:
            parts.append(f"h{told[0]}" if told[1] == "0" else f"v{told[1]}")
        elif command == "M":
            parts.append("M" + " ".join(_number(value, digits) for value in values))
        else:
            parts.append(command.lower() + " ".join(told).replace(" -", "-"))
        here = points[-1] if points else start
        start = here if command == "M" else start
    return "".join(parts)


def _number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}".rstrip("0").rstrip(".") if round(value, digits) else "0"
