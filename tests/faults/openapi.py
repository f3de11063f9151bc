"""Requests made from an OpenAPI document, right ones and wrong ones, and whether the answers are what the document says.

It takes the place of schemathesis, which is none of the pinned packages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import numpy as np

ODD_TEXTS = [
    "", " ", "a", "b", "novel-01", "000.png", "../../etc/passwd", "\0", "\x1b[31m", "a\nb", "é", "猫", "\U0001f600", "%", "%00",
    "?", "#", "/", "//", "\\", "'", '"', "<script>", "x" * 201, "y" * 5000, "null", "-1", "1e999", "\u202e", "\ufeff", "\ud800",
]  # fmt: skip
ODD_NUMBERS = [0, 1, 2, 3, -1, 199, 200, 201, 2**31, 2**63, 2**64, 10**30, 0.5, 1e300, float("nan"), float("inf")]
ODD_VALUES = [None, True, [], {}, [[]], {"a": {"b": []}}, *ODD_NUMBERS, *ODD_TEXTS]


@dataclass
class Case:
    """One request, and what its operation declares."""

    method: str
    path: str
    declared: dict[str, Any]
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)


class Document:
    """An OpenAPI document."""

    def __init__(self, content: dict[str, Any], rng: np.random.Generator, upload: Callable[[], bytes]) -> None:
        self.content, self.rng, self.upload = content, rng, upload

    def resolve(self, schema: dict[str, Any]) -> dict[str, Any]:
        while "$ref" in schema:
            found: Any = self.content
            for part in schema["$ref"].removeprefix("#/").split("/"):
                found = found[part]
            schema = found
        return schema

    def pick(self, values: list[Any]) -> Any:
        return values[int(self.rng.integers(len(values)))]

    def value(self, schema: dict[str, Any], depth: int = 0) -> Any:
        """A value of a schema; now and then one that is none."""
        schema = self.resolve(schema)
        if self.rng.random() < 0.12 or depth > 5:
            return self.pick(ODD_VALUES)
        if "anyOf" in schema:
            return self.value(self.pick(schema["anyOf"]), depth + 1)
        if "enum" in schema:
            return self.pick(schema["enum"])
        match schema.get("type"):
            case "object":
                names = [n for n in schema.get("properties", {}) if self.rng.random() < 0.95]
                made = {name: self.value(schema["properties"][name], depth + 1) for name in names}
                return made | ({"more": 1} if self.rng.random() < 0.05 else {})
            case "array":
                count = int(self.rng.integers(0, 4)) if self.rng.random() < 0.95 else 1500
                return [self.value(schema.get("items", {}), depth + 1) for _ in range(count)]
            case "integer" | "number":
                low, high = schema.get("minimum", 0), min(schema.get("maximum", 300), 300)
                return int(self.rng.integers(low, high + 1)) if self.rng.random() < 0.8 else self.pick(ODD_NUMBERS)
            case "boolean":
                return bool(self.rng.integers(2))
            case _:
                return self.pick(ODD_TEXTS)

    def cases(self, count: int) -> Iterator[Case]:
        """Requests, one operation after the other."""
        operations = [(path, method) for path, methods in self.content["paths"].items() for method in methods]
        for number in range(count):
            path, method = operations[number % len(operations)]
            yield self.case(path, method, self.content["paths"][path][method])

    def case(self, path: str, method: str, about: dict[str, Any]) -> Case:
        query = []
        for one in about.get("parameters", ()):
            value = self.value(one["schema"])
            text = quote(value if isinstance(value, str) else json.dumps(value), safe="", errors="surrogatepass")
            if one["in"] == "path":
                path = path.replace("{" + one["name"] + "}", text or "a")
            elif self.rng.random() < 0.7:
                query.append(f"{one['name']}={text}")
        case = Case(method.upper(), path + ("?" + "&".join(query) if query else ""), about["responses"])
        if "requestBody" in about:
            kinds = about["requestBody"]["content"]
            kind = self.pick(list(kinds))
            if kind == "multipart/form-data":
                self.attach(case)
            else:
                case.body = json.dumps(self.value(kinds[kind]["schema"])).encode()
                case.headers["Content-Type"] = kind
            self.spoil(case)
        return case

    def attach(self, case: Case) -> None:
        head = (
            b'--x\r\nContent-Disposition: form-data; name="image"; filename="x.png"\r\nContent-Type: image/png\r\n\r\n'
        )
        case.body = head + self.upload() + b"\r\n--x--\r\n"
        case.headers["Content-Type"] = "multipart/form-data; boundary=x"

    def spoil(self, case: Case) -> None:
        """Now and then a body that is cut, of another kind, or no text at all."""
        assert case.body is not None
        match int(self.rng.integers(12)):
            case 0:
                case.body = case.body[: int(self.rng.integers(len(case.body) + 1))]
            case 1:
                kinds = [
                    "text/plain",
                    "",
                    "application/xml",
                    "multipart/form-data",
                    "application/x-www-form-urlencoded",
                ]
                case.headers["Content-Type"] = self.pick(kinds)
            case 2:
                case.body = self.pick(
                    [b"[" * 5000, b'{"a":' * 3000, b"\xff\xfe", b"NaN", b"9" * 5000, b"null", b"", b"\0"]
                )

    def problem(self, case: Case, status: int, kind: str, content: bytes) -> str:
        """What is wrong with an answer; empty if nothing is."""
        if status >= 500:
            return f"status {status}"
        declared = case.declared.get(str(status))
        if declared is None:
            return f"status {status} is not declared"
        schema = declared.get("content", {}).get("application/json", {}).get("schema")
        if schema is None or not kind.startswith("application/json"):
            return (
                ""
                if kind.split(";")[0] in declared.get("content", {kind.split(";")[0]: 0}) or status == 200
                else f"kind {kind}"
            )
        return self.differs(json.loads(content), schema, "answer")

    def differs(self, value: Any, schema: dict[str, Any], where: str) -> str:
        """Where a value is not as its schema says."""
        schema = self.resolve(schema)
        if "anyOf" in schema:
            said = [self.differs(value, one, where) for one in schema["anyOf"]]
            return "" if "" in said else said[0]
        if "enum" in schema or "const" in schema:
            return "" if value in schema.get("enum", [schema.get("const")]) else f"{where} is {value!r}"
        kinds = {
            "object": dict,
            "array": list,
            "string": str,
            "integer": int,
            "number": (int, float),
            "boolean": bool,
            "null": type(None),
        }
        if "type" in schema and not isinstance(value, kinds[schema["type"]]):
            return f"{where} is no {schema['type']}"
        if isinstance(value, dict):
            missing = [name for name in schema.get("required", ()) if name not in value]
            inner = [
                self.differs(value[n], s, f"{where}.{n}") for n, s in schema.get("properties", {}).items() if n in value
            ]
            return f"{where} has no {missing[0]}" if missing else next(filter(None, inner), "")
        if isinstance(value, list):
            return next(filter(None, (self.differs(one, schema.get("items", {}), f"{where}[]") for one in value)), "")
        return ""
