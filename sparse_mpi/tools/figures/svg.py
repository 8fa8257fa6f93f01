"""SVGs of matplotlib in a third of their bytes, with the same picture."""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from itertools import count
from pathlib import Path
from xml.etree import ElementTree as Tree

SVG = "http://www.w3.org/2000/svg"
LINK = "{http://www.w3.org/1999/xlink}href"


def shorten(file: Path) -> None:
    """Write an SVG anew: without metadata, with two decimals, styles as classes, and what repeats once."""
    root = Tree.parse(file, Tree.XMLParser(target=Tree.TreeBuilder(insert_comments=True))).getroot()
    for metadata in root.findall(f"{{{SVG}}}metadata"):
        root.remove(metadata)
    for element in root.iter():
        if LINK in element.attrib:
            element.set("href", element.attrib.pop(LINK))
    _unwrap(root)
    _share_words(root)
    _name_shortly(root)
    classes = _classes(root)
    sheet = next(root.iter(f"{{{SVG}}}style"))
    sheet.text = f"{sheet.text}{''.join(f'.{name}{{{style}}}' for style, name in classes.items())}"
    _gather(root, {name for style, name in classes.items() if "fill: none" in style})
    _round(root)
    Tree.register_namespace("", SVG)
    text = Tree.tostring(root, encoding="unicode").replace(" />", "/>")
    file.write_text(re.sub(r"(?<=>)(?=<(?:g|use|path|image)[ >])", "\n", text) + "\n")


def _gather(root: Tree.Element, lines: Set[str]) -> None:
    """Draw neighbouring lines of one class as one path, clip neighbours once, and tell the class of marks once."""
    for parent in list(root.iter())[::-1]:
        kept: list[Tree.Element] = []
        for child in parent:
            alike = bool(kept) and child.tag == kept[-1].tag and child.attrib | {"d": ""} == kept[-1].attrib | {"d": ""}
            if alike and child.get("class") in lines and "d" in child.attrib:
                kept[-1].set("d", f"{kept[-1].attrib['d']}{child.attrib['d']}")
            elif alike and set(child.attrib) == {"clip-path"}:
                kept[-1].extend(child)
            else:
                kept.append(child)
        parent[:] = kept
    for parent in root.iter(f"{{{SVG}}}g"):
        classes = {child.get("class") for child in parent}
        if len(parent) > 1 and len(classes) == 1 and "class" not in parent.attrib and (shared := classes.pop()):
            parent.set("class", shared)
            for child in parent:
                del child.attrib["class"]


def _round(root: Tree.Element) -> None:
    """Write coordinates on the page with one decimal, those of glyphs and markers with two, and paths step by step."""
    small = {element for defined in root.iter(f"{{{SVG}}}defs") for element in defined.iter()}
    for element in root.iter():
        element.tail = None
        if element.tag in (f"{{{SVG}}}g", f"{{{SVG}}}use", f"{{{SVG}}}defs", f"{{{SVG}}}svg"):
            element.text = None
        digits = 2 if element in small else 1
        if "d" in element.attrib:
            element.set("d", re.sub(r"(?<![\d.])0\.", ".", _steps(element.attrib["d"], digits)))
        if "transform" in element.attrib:
            element.set("transform", re.sub(r"(\d{2,}\.\d)\d+", r"\1", element.attrib["transform"]))
        for name in {"x", "y"} & set(element.attrib):
            element.set(name, _number(float(element.attrib[name]), digits))


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
    """Return a number with at most so many decimals."""
    return f"{value:.{digits}f}".rstrip("0").rstrip(".") if round(value, digits) else "0"


def _unwrap(root: Tree.Element) -> None:
    """Take away groups that say nothing but their names."""
    for parent in list(root.iter()):
        children: list[Tree.Element] = []
        for child in parent:
            bare = child.tag == f"{{{SVG}}}g" and not set(child.attrib) - {"id"}
            children += _members(child) if bare else [child]
        parent[:] = children


def _members(group: Tree.Element) -> Iterator[Tree.Element]:
    """Yield what a group holds, and in place of a bare group within it what that holds."""
    for child in group:
        if child.tag == f"{{{SVG}}}g" and not set(child.attrib) - {"id"}:
            yield from _members(child)
        else:
            yield child


def _share_words(root: Tree.Element) -> None:
    """Let a text that was written before be used again; place its glyphs by x."""
    written: dict[tuple[tuple[str, str], ...], str] = {}
    for group in list(root.iter(f"{{{SVG}}}g")):
        glyphs = group.findall(f"{{{SVG}}}use")
        if not glyphs or not all("y" not in glyph.attrib and "style" not in glyph.attrib for glyph in glyphs):
            continue
        for glyph in glyphs:
            moved = re.fullmatch(r"translate\((\S+) 0\)", glyph.get("transform", ""))
            if moved:
                glyph.set("x", f"{float(moved[1]):.0f}")
                del glyph.attrib["transform"]
        word = tuple((glyph.attrib["href"], repr(sorted(glyph.attrib.items()))) for glyph in glyphs)
        for glyph in glyphs:
            group.remove(glyph)
        if len(glyphs) == 1 and len(group) == 0:
            written.setdefault(word, glyphs[0].attrib["href"][1:])
        if word in written:
            group.tag = f"{{{SVG}}}use"
            group.set("href", f"#{written[word]}")
        else:
            written[word] = f"word{len(written)}"
            Tree.SubElement(group, f"{{{SVG}}}g", {"id": written[word]}).extend(glyphs)


def _name_shortly(root: Tree.Element) -> None:
    """Give short names to what is referred to, and none to what is not."""
    text = Tree.tostring(root, encoding="unicode")
    used = dict.fromkeys(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    names = dict(zip(used, (f"{number:x}" for number in count(0xA0)), strict=False))
    names = {name: f"n{short}" for name, short in names.items()}
    for element in root.iter():
        name = element.attrib.pop("id", None)
        if name in names:
            element.set("id", names[name])
        for key, value in element.attrib.items():
            if "#" in value and key != "style":
                element.set(key, re.sub(r"#([^)]+)", lambda found: f"#{names.get(found[1], found[1])}", value))


def _classes(root: Tree.Element) -> dict[str, str]:
    """Put a class in place of each style, and return the classes."""
    classes: dict[str, str] = {}
    for element in root.iter():
        style = element.attrib.pop("style", None)
        if style is not None:
            element.set("class", classes.setdefault(style, f"c{len(classes)}"))
    return classes
