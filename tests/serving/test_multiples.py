"""Schemas whose `multipleOf` would take seconds and 400 MB to compile are refused."""

import json

import pytest

from dipaco.serving.decoding.multiples import MOST, problem_of_multiples


def problem_of(schema):
    return problem_of_multiples(json.dumps(schema))


def field(name, multiple):
    return {"properties": {name: {"multipleOf": multiple}}}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": "integer", "multipleOf": MOST},
        {"multipleOf": 1e-8},
        {"multipleOf": 0},  # which the compiler refuses
        {"multipleOf": "5"},  # as this
        {"properties": {"multipleOf": {"type": "string"}, "steps": {"multipleOf": 15}}},
        {"anyOf": [{"multipleOf": 3600}, {"multipleOf": 0.01}, {"multipleOf": 100.0}]},
        {"allOf": [{"multipleOf": 97}, {"multipleOf": 101}]},
        # Values, in which it is no keyword.
        {"type": "object", "default": {"multipleOf": 100_000}},
        {"enum": [{"multipleOf": 20_000}], "examples": [{"multipleOf": 20_000}]},
        # Of different numbers.
        {"properties": {"a": {"multipleOf": 0.25}, "b": {"multipleOf": 1000}}},
        {"items": {"multipleOf": 101}, "additionalProperties": {"multipleOf": 103}},
        {"properties": {f"p{n}": {"multipleOf": n} for n in (1000, 2000, 5000, MOST)}},
        {
            "properties": {f"p{n}": {"multipleOf": 0.25} for n in range(500)}
            | {"q": {"multipleOf": 1000}}
        },
        {"properties": {"a": {"anyOf": [{"multipleOf": 101}, {}]}, "b": {"multipleOf": 103}}},
    ],
    ids=lambda schema: str(schema)[:80],
)
def test_small_multiples_are_no_problem(schema):
    assert problem_of(schema) is None


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "integer", "multipleOf": 9999991}, "9999991"),
        ({"type": "integer", "multipleOf": 499.979}, "499.979"),
        ({"multipleOf": 1e-300}, "1e-300"),
        ({"items": {"properties": {"a": {"multipleOf": MOST + 1}}}}, str(MOST + 1)),
        # Together, as where both hold for one number.
        ({"allOf": [{"multipleOf": 101}, {"multipleOf": 103}]}, "103"),
        ({"$ref": "#/$defs/a", "multipleOf": 997, "$defs": {"a": {"multipleOf": 99.1}}}, "997"),
        ({**field("a", 101), "allOf": [{"additionalProperties": {"multipleOf": 103}}]}, "103"),
        ({**field("a", 101), "patternProperties": {"a": {"multipleOf": 103}}}, "103"),
        ({"anyOf": [{"items": {"multipleOf": 101}}, {"items": {"multipleOf": 103}}]}, "103"),
        # Each has its own remainders.
        ({"properties": {"a": {"multipleOf": 5003}, "b": {"multipleOf": 5009}}}, "5009"),
        # Whatever the property is called, and where a `$ref` makes a schema of a value.
        (field("const", 9999991), "9999991"),
        ({"properties": {"default": field("enum", 9999991)}}, "9999991"),
        ({"$ref": "#/examples/0", "examples": [{"multipleOf": 9999991}]}, "9999991"),
    ],
    ids=str,
)
def test_large_multiples_are_named(schema, named):
    problem = problem_of(schema)
    assert f"`multipleOf` {named} " in problem
    assert "10,000" in problem


def test_a_key_may_be_written_with_escapes_or_twice():
    for written in ('{"multiple\\u004ff": 9999991}', '{"multipleOf": 9999991, "multipleOf": 1}'):
        assert problem_of_multiples(written)


def test_numbers_of_many_digits_take_no_time():
    assert problem_of_multiples('{"multipleOf": 1e999999999}')
    assert problem_of_multiples('{"multipleOf": 1e-999999999}')
    assert problem_of_multiples('{"multipleOf": 1' + "0" * 100_000 + "}")
    assert problem_of_multiples('{"multipleOf": 0.' + "1" * 100_000 + "}")


@pytest.mark.parametrize("number", ["1e9999999999999999999", "2.5e-9999999999999999999"])
def test_an_exponent_that_no_decimal_has_is_a_sentence(number):
    with pytest.raises(ValueError, match=f"^the number {number} has too large an exponent$"):
        problem_of_multiples(f'{{"multipleOf": 3, "maximum": {number}}}')
