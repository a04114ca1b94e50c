# SPDX-License-Identifier: Apache-2.0
"""Edits the XML of a domain in place.

The document is never serialised again: a parser finds the bytes where the
elements of interest begin and end, and only these bytes are replaced. So
comments, CDATA, foreign namespaces, the order of attributes and the white
space of the rest do not change.
"""

from collections.abc import Collection, Iterable, Iterator
from xml.parsers import expat

#: Between a namespace and a name in it.
NS_END = ' '


class DomainXmlError(ValueError):
    """Not the XML of a domain, or not a valid one."""


class Element:
    """An element of interest, and its place in the document.

    :ivar children: those of interest by name, the first of each
    :ivar start: offset of its first byte
    :ivar tag_end: offset behind its start tag
    :ivar end: offset behind its last byte
    """

    __slots__ = ('attributes', 'children', 'chunks', 'end', 'path', 'start',
                 'tag_end')

    def __init__(self, path: tuple[str, ...], attributes: dict[str, str],
                 start: int, tag_end: int) -> None:
        self.path = path
        self.attributes = attributes
        self.start = start
        self.tag_end = tag_end
        self.end = tag_end
        self.children: dict[str, Element] = {}
        self.chunks: list[str] = []

    @property
    def text(self) -> str:
        """Its own text, without white space at the ends."""
        return ''.join(self.chunks).strip()

    def attribute(self, child: str, name: str) -> str:
        """An attribute of a child; '': there is none."""
        found = self.children.get(child)
        return '' if found is None else found.attributes.get(name, '')


class Document:
    """The bytes of a domain's XML, and its elements of interest."""

    def __init__(self, xml: bytes | str,
                 kept: Collection[tuple[str, ...]]) -> None:
        """
        :param kept: paths of the elements of interest; the name of an element
            in a namespace is the namespace, NS_END and its own name
        :raises DomainXmlError: when it is not the XML of a domain
        """
        # NOTE: a text has no encoding, whatever its declaration says.
        encoding = 'utf-8' if isinstance(xml, str) else None
        self.bytes = xml.encode() if isinstance(xml, str) else xml
        self._kept = kept
        self._deepest = max(map(len, kept))
        self._elements: dict[tuple[str, ...], list[Element]] = {}
        self._path: list[str] = []
        self._open: list[Element] = []
        self._parser = expat.ParserCreate(encoding, NS_END)
        self._parser.StartDoctypeDeclHandler = _refuse_doctype
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._characters
        # NOTE: edits are ASCII, so they would be wrong in UTF-16, the only
        # encoding of the parser that is no superset of it. Only UTF-16 has
        # zero bytes.
        if b'\0' in self.bytes:
            raise DomainXmlError(
                'not the XML of a domain: a zero byte is in it')
        try:
            self._parser.Parse(self.bytes, True)
        except (expat.ExpatError, LookupError, ValueError) as error:
            # LookupError: an encoding that Python lacks.
            raise DomainXmlError(
                f'not the XML of a domain: {error}') from error

    def all(self, path: tuple[str, ...]) -> list[Element]:
        """The elements at a path of interest."""
        return self._elements.get(path, [])

    def first(self, path: tuple[str, ...]) -> Element | None:
        """The first element at a path; None: there is none."""
        return next(iter(self.all(path)), None)

    def text(self, path: tuple[str, ...]) -> str:
        """The text of the first element at a path; '': there is none."""
        element = self.first(path)
        return '' if element is None else element.text

    def line_start(self, offset: int) -> int:
        """The offset of the end of the line before an element's line.

        Where something precedes the element in its line: the given offset.
        """
        # NOTE: byte by byte. The size of the XML is another host's to choose:
        # a look at all that precedes each element would take its square.
        indent = offset
        while indent and self.bytes[indent - 1] in b' \t':
            indent -= 1
        if self.bytes[indent - 1:indent] != b'\n':
            return offset
        return indent - (2 if self.bytes[indent - 2:indent] == b'\r\n' else 1)

    def new_line(self, offset: int) -> bytes:
        """The bytes from the end of the line before to the element."""
        return self.bytes[self.line_start(offset):offset]

    def removed(self, elements: Iterable[Element]
                ) -> Iterator[tuple[int, int, bytes]]:
        """The edits that remove elements, with their lines."""
        for element in elements:
            yield self.line_start(element.start), element.end, b''

    def edited(self, edits: list[tuple[int, int, bytes]]) -> bytes:
        """The document with some of its bytes replaced.

        :param edits: of (start, end, replacement), which do not overlap
        """
        pieces = []
        done = 0
        for start, end, replacement in sorted(edits):
            pieces += [self.bytes[done:start], replacement]
            done = end
        return b''.join((*pieces, self.bytes[done:]))

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._path.append(name)
        if len(self._path) > self._deepest:
            return
        path = tuple(self._path)
        if path[0] != 'domain':
            raise DomainXmlError(f'it is a <{path[0][:80]}>')
        if path in self._kept:
            element = Element(path, attributes,
                              self._parser.CurrentByteIndex, self._tag_end())
            self._elements.setdefault(path, []).append(element)
            parent = self._open[-1] if self._open else None
            if parent is not None and parent.path == path[:-1]:
                parent.children.setdefault(name, element)
            self._open.append(element)

    def _end(self, _name: str) -> None:
        # Only one open element has this depth.
        if self._open and len(self._open[-1].path) == len(self._path):
            element = self._open.pop()
            if self.bytes[element.tag_end - 2:element.tag_end] != b'/>':
                element.end = 1 + self.bytes.index(
                    b'>', self._parser.CurrentByteIndex)
        self._path.pop()

    def _characters(self, text: str) -> None:
        if self._open and len(self._open[-1].path) == len(self._path):
            self._open[-1].chunks.append(text)

    def _tag_end(self) -> int:
        """Offset behind the start tag that the parser is at."""
        end: int = self._parser.CurrentByteIndex
        quote = 0
        # The parser has seen the tag's end: there is one.
        while True:
            end += 1
            byte = self.bytes[end]
            if quote:
                quote = 0 if byte == quote else quote
            elif byte in b'"\'':
                quote = byte
            elif byte == ord('>'):
                return end + 1


def _refuse_doctype(*_args: object) -> None:
    # NOTE: libvirt writes none, and entities can be declared only there.
    raise DomainXmlError('a document type is declared, which is refused')
