"""AMPSConfig files as trees of elements that know their file and line.

XML is read with expat: no DOCTYPE and so no entities of a file's own, a bounded size and depth.
`${VAR}` is replaced in texts and attributes after the file was parsed, so that a value cannot bring
elements. `<Include>` inserts the elements of another file. The same tree comes from YAML whose one
key is `AMPSConfig`; lists there are repeated elements.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

import yaml

from raylay.services.configuration.amps.types import OFF_WORDS, ON_WORDS
from raylay.services.errors import ConfigurationError

TOTAL_BYTES_MAX = 5_000_000
"""Size of a file and everything it includes, as the documented ConfigCycleDetectionThreshold."""
DEPTH_MAX = 32
INCLUDE_DEPTH_MAX = 16
INCLUDES_MAX = 1_000
"""Most files that one configuration may include; a file that is included twice counts twice."""
DOLLAR_VARIABLE = "RAYLAY_DOLLAR"
"""Name of a variable whose value is a dollar sign, so that a value may contain `${`: variables are
replaced only once."""
ELEMENTS_MAX = 500_000
"""The most elements that a YAML configuration may have. An alias counts all that it stands for: a
few lines of aliases of aliases stand for more than any memory has."""
ROOT = "AMPSConfig"
VERSION = "5.3.4"
"""Version of AMPSConfig that Raylay follows: the value of `${AMPS_VERSION}`."""
_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_DECLARATION = re.compile(r"\s*<\?xml[^>]*\?>")
_NAME = re.compile(r"[A-Za-z_]\w*")
_MISMATCHED_TAG = expat.errors.codes[expat.errors.XML_ERROR_TAG_MISMATCH]
_HOLDER = "<holder>"


@dataclass(slots=True)
class Element:
    """One element of an AMPSConfig file.

    Attributes:
        origin: place of the element's tag: `file:line`.
        text: text of the element outside its child elements, with variables replaced and without
            space around it.
        stray: texts beside child elements, as (origin, text).
    """

    tag: str
    origin: str
    text: str = ""
    children: list[Element] = field(default_factory=list)
    stray: list[tuple[str, str]] = field(default_factory=list)
    attributes: dict[str, str] = field(default_factory=dict)


class Variables:
    """Values of `${VAR}`. A value that is given with -D comes first, then a built-in one, then one
    of the environment."""

    def __init__(self, defines: Mapping[str, str], environment: Mapping[str, str], path: Path):
        built_in = {
            "AMPS_CONFIG_DIRECTORY": str(path.absolute().parent),
            "AMPS_CONFIG_PATH": str(path.absolute()),
            "AMPS_VERSION": VERSION,
            DOLLAR_VARIABLE: "$",
        }
        self._values = {**environment, **built_in, **defines}

    def expand(self, text: str, origin: str, errors: list[str]) -> str:
        """Returns the text with every `${VAR}` replaced. A variable that is not set is an error."""
        if "${" not in text:
            return text

        def value(match: re.Match[str]) -> str:
            found = self._values.get(match[1])
            if found is None:
                errors.append(
                    f"{origin}: ${{{match[1]}}} is not set: set it in the environment, or give "
                    f"-D {match[1]}=VALUE"
                )
                return match[0]
            return found

        return _VARIABLE.sub(value, text)


def parse_defines(defines: list[str] | None) -> dict[str, str]:
    """Returns the variables that the options `-D VAR=VALUE` give.

    Raises:
        ConfigurationError: one is of another form.
    """
    made = {}
    for each in defines or ():
        name, equals, value = each.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise ConfigurationError(f"-D {each}: expected VAR=VALUE")
        made[name] = value
    return made


def read_text(path: Path) -> str:
    """Returns the text of a file.

    Raises:
        ConfigurationError: it cannot be read, is too large, or is no UTF-8.
    """
    try:
        with path.open("rb") as file:
            data = file.read(TOTAL_BYTES_MAX + 1)
        if len(data) > TOTAL_BYTES_MAX:
            raise ConfigurationError(f"{path}: at most {TOTAL_BYTES_MAX} bytes are read")
        return data.decode("utf-8-sig")
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: no UTF-8 text: {error.reason}") from None


def is_amps(text: str) -> bool:
    """Returns whether a file is an AMPSConfig, in XML or YAML, and not a fabric in YAML."""
    return text.lstrip().startswith("<") or re.search(rf"^{ROOT}:", text, re.MULTILINE) is not None


class _TooMuchError(Exception):
    """A configuration is larger than any may be: nothing more of it is read."""


class TreeReader:
    """Reads one configuration with everything it includes. Use once.

    Attributes:
        errors: the faults of the file, a line each; the tree is complete only without any.
    """

    def __init__(self, variables: Variables) -> None:
        self.errors: list[str] = []
        self._variables = variables
        self._open: list[Path] = []
        self._bytes = self._includes = self._elements = 0

    def read(self, path: Path, text: str | None = None) -> Element | None:
        """Returns the root element of a file; None: the file has none.

        Args:
            text: text of the file, if it was read before.
        """
        if text is None:
            try:
                text = read_text(path)
            except ConfigurationError as error:
                self.errors.append(str(error))
                return None
        if not text.lstrip().startswith("<"):
            return self._of_yaml(path, text)
        try:
            holder = self._parse(path, text)
        except _TooMuchError as error:
            self.errors.append(str(error))
            return None
        if holder is None:
            return None
        roots = holder.children
        if len(roots) != 1 or roots[0].tag != ROOT:
            shown = ", ".join(root.tag for root in roots[:3]) or "nothing"
            where = roots[0].origin if roots else f"{path}:1"
            self.errors.append(f"{where}: expected one element {ROOT}, got {shown}")
            return None
        self.errors += [f"{origin}: {stray_text(text)}" for origin, text in holder.stray]
        return roots[0]

    # -- XML ---------------------------------------------------------------------------------
    def _parse(self, path: Path, text: str) -> Element | None:
        """Returns an element that holds the file's elements, with the elements of included files
        inserted."""
        self._bytes += len(text)
        if self._bytes > TOTAL_BYTES_MAX:
            raise _TooMuchError(
                f"{self._open[0] if self._open else path}: with its Includes it has more than "
                f"{TOTAL_BYTES_MAX:,} bytes"
            )
        self._open.append(path.resolve())
        try:
            # An included file may hold several elements: all are put into one of ours. The
            # declaration would have to be the first thing; its line stays.
            declaration = _DECLARATION.match(text)
            if declaration:
                text = "\n" * declaration[0].count("\n") + text[declaration.end() :]
            return _ExpatReader(self, path).parse(text)
        finally:
            self._open.pop()

    def include(self, parent: Element, include: Element, path: Path) -> None:
        """Puts the elements of the named file where the Include stands."""
        name = include.text.strip()
        target = path.parent / name
        for key, value in include.attributes.items():
            if key != "comment" or value.lower() not in ON_WORDS | OFF_WORDS:
                self.errors.append(
                    f"{include.origin}: Include takes comment='true', got {key}={value!r}"
                )
        if not name or include.children:
            self.errors.append(f"{include.origin}: Include: expected the name of a file")
        elif target.resolve() in self._open:
            chain = " → ".join(each.name for each in (*self._open, target))
            self.errors.append(f"{include.origin}: Include {name} goes in a circle: {chain}")
        elif len(self._open) >= INCLUDE_DEPTH_MAX:
            self.errors.append(
                f"{include.origin}: Include {name}: files are nested deeper than "
                f"{INCLUDE_DEPTH_MAX}"
            )
        else:
            self._includes += 1
            if self._includes > INCLUDES_MAX:
                raise _TooMuchError(
                    f"{include.origin}: more than {INCLUDES_MAX:,} files are included, each time "
                    "counted"
                )
            try:
                text = read_text(target)
            except ConfigurationError as error:
                self.errors.append(f"{include.origin}: Include: {error}")
                return
            holder = self._parse(target, text)
            if holder is not None:
                parent.children += holder.children
                parent.stray += holder.stray
                if holder.text:
                    parent.stray.append((f"{target}:1", holder.text))

    def expand(self, text: str, origin: str) -> str:
        """Returns the text with its variables replaced."""
        return self._variables.expand(text, origin, self.errors)

    # -- YAML --------------------------------------------------------------------------------
    def _of_yaml(self, path: Path, text: str) -> Element | None:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            if not isinstance(node, yaml.MappingNode) or len(node.value) != 1:
                self.errors.append(f"{path}:1: expected one key, {ROOT}")
                return None
            key, value = node.value[0]
            return self._yaml_elements(path, key, value, key.start_mark.line, frozenset())[0]
        except _TooMuchError as error:
            self.errors.append(str(error))
            return None
        except RecursionError:
            self.errors.append(f"{path}:1: nested too deeply (more than {DEPTH_MAX})")
            return None
        except (yaml.YAMLError, IndexError) as error:
            mark = getattr(error, "problem_mark", None)
            line = mark.line + 1 if mark is not None else 1
            problem = getattr(error, "problem", None) or "expected a section"
            self.errors.append(f"{path}:{line}: this is no YAML of an {ROOT}: {problem}")
            return None
        finally:
            loader.dispose()

    def _yaml_elements(
        self, path: Path, key: yaml.Node, value: yaml.Node, line: int, open_nodes: frozenset[int]
    ) -> list[Element]:
        origin = f"{path}:{line + 1}"
        if not isinstance(key, yaml.ScalarNode):
            self.errors.append(f"{origin}: a key is the name of an element")
            return []
        if len(open_nodes) > DEPTH_MAX or id(value) in open_nodes:
            self.errors.append(f"{origin}: nested too deeply (more than {DEPTH_MAX})")
            return []
        self._elements += 1
        if self._elements > ELEMENTS_MAX:
            raise _TooMuchError(
                f"{origin}: more than {ELEMENTS_MAX:,} elements, those behind an alias (`*name`) "
                "each time counted"
            )
        inside = open_nodes | {id(value)}
        if isinstance(value, yaml.SequenceNode):
            return [
                made
                for item in value.value
                for made in self._yaml_elements(path, key, item, item.start_mark.line, inside)
            ]
        element = Element(key.value, origin)
        if isinstance(value, yaml.MappingNode):
            for inner_key, inner in value.value:
                element.children += self._yaml_elements(
                    path, inner_key, inner, inner_key.start_mark.line, inside
                )
        elif value.tag != "tag:yaml.org,2002:null":
            element.text = self.expand(value.value, origin).strip()
        return [element]


class _ExpatReader:
    """A reader of one file. The file's elements become children of an element whose tag no file can
    use."""

    def __init__(self, reader: TreeReader, path: Path) -> None:
        self._reader = reader
        self._path = path
        self._stack: list[Element] = [Element("", f"{path}:1")]
        self._text: list[tuple[str, str]] = []
        self._parser = parser = expat.ParserCreate("utf-8")
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters

    def parse(self, text: str) -> Element | None:
        try:
            self._parser.Parse(_HOLDER, False)
            self._parser.Parse(text, False)
            self._parser.Parse("</holder>", True)
        except expat.ExpatError as error:
            # Inside of the holder a DOCTYPE is no declaration to expat, but a mistake.
            at = self._parser.ErrorByteIndex - len(_HOLDER) - len("<!")
            if text.encode("utf-8")[max(at, 0) :].startswith(b"<!DOCTYPE"):
                self._reader.errors.append(
                    f"{self._path}:{error.lineno}: a DOCTYPE is not taken: leave it out"
                )
                return None
            self._reader.errors.append(self._not_xml(error))
            return None
        except ConfigurationError as error:
            self._reader.errors.append(str(error))
            return None
        return self._stack[0].children[0] if self._stack[0].children else None

    def _not_xml(self, error: expat.ExpatError) -> str:
        what = f"this is no XML: {expat.ErrorString(error.code)}"
        unclosed = self._stack[-1]
        if unclosed.tag and error.code == _MISMATCHED_TAG:
            # The parser finds it at the next end tag, which may be the last line of the file.
            return (
                f"{unclosed.origin}: this is no XML: {unclosed.tag} has no end tag before line "
                f"{error.lineno}: {what.partition(': ')[2]}"
            )
        return f"{self._path}:{error.lineno}: {what}"

    def _here(self) -> str:
        return f"{self._path}:{self._parser.CurrentLineNumber}"

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        here = self._here()
        if len(self._stack) > DEPTH_MAX:
            raise ConfigurationError(f"{here}: nested too deeply (more than {DEPTH_MAX})")
        self._flush()
        made = {key: self._reader.expand(value, here) for key, value in attributes.items()}
        self._stack.append(Element(tag, here, attributes=made))

    def _characters(self, text: str) -> None:
        # The line is that of the first character that is no white space.
        line = self._parser.CurrentLineNumber
        line += text[: len(text) - len(text.lstrip())].count("\n")
        self._text.append((f"{self._path}:{line}", text))

    def _flush(self) -> None:
        """Keeps the text that came since the last tag."""
        whole = "".join(text for _, text in self._text).strip()
        if whole:
            origin = next(origin for origin, text in self._text if text.strip())
            self._stack[-1].stray.append((origin, self._reader.expand(whole, origin)))
        self._text.clear()

    def _end(self, tag: str) -> None:
        self._flush()
        element = self._stack.pop()
        if not element.children:
            element.text = " ".join(text for _, text in element.stray)
            element.stray.clear()
        parent = self._stack[-1]
        if tag == "Include":
            self._reader.include(parent, element, self._path)
        else:
            parent.children.append(element)


def stray_text(text: str) -> str:
    """Returns the fault of a text that stands beside elements."""
    first = text.strip().splitlines()[0]
    if first.startswith("..."):
        return (
            f"expected elements, got the text {first!r}: it stands for what the documents leave "
            "out; put the elements there"
        )
    return f"expected elements, got the text {first!r}"
