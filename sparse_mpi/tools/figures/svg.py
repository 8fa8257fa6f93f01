"""SVGs of matplotlib in a third of their bytes, with the same picture."""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from itertools import count, groupby
from pathlib import Path
from xml.etree import ElementTree as Tree

SVG = "http://www.w3.org/2000/svg"
SPACE = "-3"  # how the name of the glyph of a space ends
Written = dict[tuple[tuple[str, str], ...], tuple[str, float]]  # words: their names, and where each was first
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
    """Draw neighbouring lines of one class as one path, and tell class and clipping of neighbours once."""
    for parent in list(root.iter())[::-1]:
        kept: list[Tree.Element] = []
        for (tag, shared), alike in groupby(parent, lambda child: (child.tag, _shared(child))):
            members = list(alike)
            if dict(shared).get("class") in lines and "d" in members[0].attrib:
                members[0].set("d", "".join(member.attrib["d"] for member in members))
                del members[1:]
            if len(members) > 1 and shared:
                group = Tree.Element(f"{{{SVG}}}g", dict(shared))
                for member in members:
                    for name, _ in shared:
                        del member.attrib[name]
                    group.extend(member if tag == group.tag and not member.attrib else [member])
                members = [group]
            kept += members
        parent[:] = kept


def _shared(element: Tree.Element) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in element.attrib.items() if name in ("class", "clip-path"))


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
    """Let a word that was written before be used again; place glyphs and words by x."""
    written: Written = {}
    for group in list(root.iter(f"{{{SVG}}}g")):
        glyphs = group.findall(f"{{{SVG}}}use")
        places = [re.fullmatch(r"(?:translate\((\S+) 0\))?", glyph.get("transform", "")) for glyph in glyphs]
        if not glyphs or not all(places) or any(set(glyph.attrib) - {"href", "transform"} for glyph in glyphs):
            continue  # marks, or a formula
        letters = [
            (float(place[1] or 0), glyph.attrib["href"]) for place, glyph in zip(places, glyphs, strict=True) if place
        ]
        for glyph in glyphs:
            group.remove(glyph)
        for blank, word in groupby(letters, lambda letter: letter[1].endswith(SPACE)):
            if not blank:
                group.append(_word(list(word), written))
        if len(group) == 1 and group[0].tag == f"{{{SVG}}}use" and "x" not in group[0].attrib:
            group.tag = f"{{{SVG}}}use"
            group.set("href", group[0].attrib["href"])
            group.remove(group[0])


def _word(letters: list[tuple[float, str]], written: Written) -> Tree.Element:
    """Return the element of a word, and note where it was written first."""
    start = letters[0][0]
    if len(letters) == 1:
        return Tree.Element(f"{{{SVG}}}use", {"href": letters[0][1]} | _at(start))
    word = tuple((f"{place - start:.0f}", glyph) for place, glyph in letters)
    if word in written:
        name, first = written[word]
        return Tree.Element(f"{{{SVG}}}use", {"href": f"#{name}"} | _at(start - first))
    written[word] = f"word{len(written)}", start
    element = Tree.Element(f"{{{SVG}}}g", {"id": written[word][0]})
    for place, glyph in letters:
        Tree.SubElement(element, f"{{{SVG}}}use", {"href": glyph} | _at(place))
    return element


def _at(place: float) -> dict[str, str]:
    return {"x": f"{place:.0f}"} if round(place) else {}


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
