"""A page as a program reads it."""

from html.parser import HTMLParser

VOID = {"meta", "br"}


class Page(HTMLParser):
    """Collect numbers, tags, attributes and text of a page; refuse one whose tags do not match."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.attributes, self.text = [], [], [], ""
        self.numbers, self._shown = [], []  # (key, value, text)
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.attributes += attributes
        assert len(dict(attributes)) == len(attributes), f"an attribute twice: {attributes}"
        if tag not in VOID:
            self.open.append(
                (tag, dict(attributes).get("data-key"), dict(attributes).get("data-value"), len(self.text))
            )

    def handle_endtag(self, tag):
        name, key, value, start = self.open.pop()
        assert name == tag, f"<{name}> ends as </{tag}>"
        if key is not None:
            self.numbers.append((key, value, self.text[start:]))

    def handle_data(self, data):
        self.text += data

    def values(self):
        return {key: value for key, value, _ in self.numbers}

    def of(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def flat(value, key=""):
    """Return the numbers of nested mappings by dotted key."""
    if isinstance(value, dict):
        return {k: v for name, inner in value.items() for k, v in flat(inner, f"{key}.{name}" if key else name).items()}
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return {key: value}
    return {}
