#!/usr/bin/env python3
"""Random JSON schemas, and for each answers, and arguments of calls, that its grammar lets through: an independent
validator must be content with all of them. Slow: 10,000 schemas take minutes.

    random_schemas.py PROBE [SCHEMAS] [SEED]

PROBE is the program grammar_probe. Wants the Python package jsonschema; without it the exit status is 77 (skipped)."""

import json
import random
import re
import subprocess
import sys

try:
    import jsonschema
except ImportError:
    print("skipped: the Python package jsonschema is missing")
    sys.exit(77)

# Those of Python's library alone.
FORMATS = jsonschema.FormatChecker(["date", "ipv4", "ipv6", "uuid", "email"])
WORDS = ["a", "name", "ä b", "x/y", "q\"t", "n1", "long name of it", "🙂", "z", "id"]


# What JSON escapes, and two that it does not.
CHARACTERS = [chr(code) for code in range(1, 0x20)] + ['"', "\\", "a", "é"]


def spelled(rng, character):
    """As a regular expression has it."""
    code = ord(character)
    ways = ["\\\\" if character == "\\" else character, f"\\x{code:02x}", f"\\u{code:04X}"]
    if code < 27:
        ways += [f"\\c{chr(code + 64)}", {9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"}.get(code, character)]
    return rng.choice(ways)


def piece(rng, depth=0):
    one = lambda: spelled(rng, rng.choice(CHARACTERS))
    kind = rng.randrange(8 if depth < 2 else 5)
    if kind == 1:
        return f"[{rng.choice(['', '^'])}{one()}{one()}{rng.choice(['', 'a-f', chr(92) + 'd'])}]"
    if kind == 2:
        low, high = sorted(rng.sample(CHARACTERS, 2))
        return f"[{rng.choice(['', '^'])}{spelled(rng, low)}-{spelled(rng, high)}]"
    if kind == 3:
        return rng.choice([".", "[^a]", '[^"]', "[\\s\\S]", "\\D", "\\W", "[^\\d\\\\]"])
    if kind == 5:
        return f"({piece(rng, depth + 1)}|{piece(rng, depth + 1)})"
    if kind > 5:
        return f"(?:{piece(rng, depth + 1)}{piece(rng, depth + 1)})" + rng.choice(["?", "*", "{2}", "{1,3}"])
    return one()


def pattern(rng):
    return "^" + "".join(piece(rng) for _ in range(rng.randint(1, 4))) + "$"


def as_python(made):
    """The schema with its patterns as Python reads them: there $ is also before a last line's end, and \\cX unknown."""
    def regex(text):
        text = re.sub(r"(?<!\\)((?:\\\\)*)\\c(.)", lambda match: match[1] + f"\\x{ord(match[2]) % 32:02x}", text)
        return "(?a)" + (text[:-1] + "\\Z" if text.endswith("$") else text)
    if isinstance(made, list):
        return [as_python(part) for part in made]
    if not isinstance(made, dict):
        return made
    out = {key: as_python(part) for key, part in made.items()}
    if isinstance(out.get("pattern"), str):
        out["pattern"] = regex(out["pattern"])
    if isinstance(out.get("patternProperties"), dict):
        out["patternProperties"] = {regex(key): part for key, part in out["patternProperties"].items()}
    return out


def schema(rng, depth=0):
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const"]
    if depth < 4:
        kinds += ["object"] * 5 + ["array"] * 3 + ["anyOf", "types", "map", "tuple", "ref", "untyped"]
    return {"string": string, "integer": integer, "number": number, "enum": enum, "object": obj, "array": array,
            "anyOf": any_of, "types": types, "map": mapping, "tuple": tuple_of, "untyped": untyped,
            "boolean": lambda rng, depth: {"type": "boolean"}, "null": lambda rng, depth: {"type": "null"},
            "const": lambda rng, depth: {"const": value(rng)},
            "ref": lambda rng, depth: {"$ref": "#/$defs/" + rng.choice(["node", "small"])}}[rng.choice(kinds)](rng, depth)


def value(rng, depth=0):
    kind = rng.randrange(7 if depth < 2 else 5)
    if kind == 0:
        return rng.choice(WORDS)
    if kind == 1:
        return rng.randint(-10**6, 10**6)
    if kind == 2:
        return rng.uniform(-1e3, 1e3)
    if kind == 3:
        return rng.random() < 0.5
    if kind == 4:
        return None
    if kind == 5:
        return [value(rng, depth + 1) for _ in range(rng.randrange(3))]
    return {word: value(rng, depth + 1) for word in rng.sample(WORDS, rng.randrange(3))}


def bounds(rng, out, low, high, draw):
    a, b = sorted((draw(), draw()))
    if rng.random() < 0.6:
        out[low] = a
    if rng.random() < 0.6:
        out[high] = b
    return out


def string(rng, depth):
    out = {"type": "string"}
    kind = rng.randrange(4)
    if kind == 0:
        bounds(rng, out, "minLength", "maxLength", lambda: rng.randrange(0, 12))
    elif kind == 1:
        out["pattern"] = rng.choice(["^[a-z]+$", "^[A-Z][a-z]{2,5}$", "^\\d{3}-\\d{4}$", "^(ab|cd)*e?$", "^[^\"]*$",
                                     "^\\w+@\\w+$", "^.{2,4}$", "^[a-z_.-]{1,300}$", "a+b", "^x", "y$"] + [pattern(rng)] * 12)
    elif kind == 2:
        out["format"] = rng.choice(["date", "time", "date-time", "ipv4", "ipv6", "uuid", "email", "json-pointer",
                                     "relative-json-pointer", "uri-template"])
    return out


def integer(rng, depth):
    out = {"type": "integer"}
    kind = rng.randrange(4)
    if kind == 0:
        bounds(rng, out, "minimum", "maximum", lambda: rng.randint(-10**rng.randrange(1, 7), 10**rng.randrange(1, 7)))
    elif kind == 1:
        out["exclusiveMinimum"] = rng.randint(-100, 100)
    elif kind == 2:
        out["multipleOf"] = rng.choice([1, 2, 3, 5, 7])
    return out


def number(rng, depth):
    out = {"type": "number"}
    kind = rng.randrange(4)
    if kind == 0:
        bounds(rng, out, "minimum", "maximum", lambda: round(rng.uniform(-1000, 1000), rng.randrange(0, 4)))
    elif kind == 1:
        out[rng.choice(["exclusiveMinimum", "exclusiveMaximum"])] = round(rng.uniform(-10, 10), 2)
    return out


def enum(rng, depth):
    return {"enum": [value(rng) for _ in range(rng.randint(1, 4))]}


def obj(rng, depth):
    names = rng.sample(WORDS, rng.randint(1, 5))
    out = {"type": "object", "properties": {name: schema(rng, depth + 1) for name in names}}
    if rng.random() < 0.8:
        out["required"] = rng.sample(names, rng.randint(0, len(names)))
        if rng.random() < 0.15:
            out["required"].append("other")
    if rng.random() < 0.4:
        out["additionalProperties"] = rng.choice([False, True, {"type": "integer"}])
    if rng.random() < 0.2:
        out[rng.choice(["minProperties", "maxProperties"])] = rng.randint(0, 4)
    if rng.random() < 0.3:
        out["description"] = "what it is"
    return out


def mapping(rng, depth):
    out = {"type": "object"}
    kind = rng.randrange(4)
    if kind == 0:
        out["additionalProperties"] = schema(rng, depth + 1)
    elif kind == 1:
        out["patternProperties"] = {rng.choice(["^[a-z]+$", "^x-", "\\d", pattern(rng), pattern(rng)]): schema(rng, depth + 1)}
    elif kind == 2:
        out["propertyNames"] = {"pattern": rng.choice(["^[a-z]{1,4}$", pattern(rng)])}
    if rng.random() < 0.4:
        out[rng.choice(["minProperties", "maxProperties"])] = rng.randint(0, 3)
    return out


def array(rng, depth):
    out = {"type": "array"}
    if rng.random() < 0.9:
        out["items"] = schema(rng, depth + 1)
    if rng.random() < 0.6:
        bounds(rng, out, "minItems", "maxItems", lambda: rng.randrange(0, 5))
    return out


def tuple_of(rng, depth):
    out = {"type": "array", "prefixItems": [schema(rng, depth + 1) for _ in range(rng.randint(1, 3))]}
    if rng.random() < 0.6:
        out["items"] = rng.choice([False, True, {"type": "integer"}])
    if rng.random() < 0.4:
        bounds(rng, out, "minItems", "maxItems", lambda: rng.randrange(0, 5))
    return out


def any_of(rng, depth):
    return {rng.choice(["anyOf", "anyOf", "oneOf"]): [schema(rng, depth + 1) for _ in range(rng.randint(1, 3))]}


def types(rng, depth):
    out = {"type": rng.sample(["string", "integer", "number", "null", "boolean", "array"], rng.randint(1, 3))}
    out.update({"minimum": 3} if rng.random() < 0.5 else {"maxLength": 4})
    return out


def untyped(rng, depth):
    return rng.choice([{}, {"minLength": 2}, {"maximum": 7, "minItems": 1}, {"required": ["a"]}, True,
                       {"properties": {"a": {"minimum": 3}}}, {"items": {"maxLength": 2}}])


def document(rng):
    root = schema(rng)
    if not isinstance(root, dict):
        root = {}
    root["$defs"] = {"small": {"type": "integer", "maximum": 9},
                     "node": {"type": "object", "required": ["v"],
                              "properties": {"v": {"type": "integer"},
                                             "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}}
    return root


def main():
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 10000
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    probe = subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    followed, refused, answers, unfinished, wrong = 0, {}, 0, 0, 0
    for i in range(seed, seed + count):
        made = document(random.Random(i))
        if i % 3 == 0:  # the arguments of a call are an object
            made = {**obj(random.Random(i), 0), "$defs": made["$defs"]}
        kind = "parameters" if i % 3 == 0 else "schema"
        probe.stdin.write(json.dumps({kind: made, "answers": 2, "seed": i}) + "\n")
        probe.stdin.flush()
        reply = json.loads(probe.stdout.readline())
        if "error" in reply:
            why = reply["error"].split(" at ")[0]
            refused[why] = refused.get(why, 0) + 1
            continue
        followed += 1
        validator = jsonschema.Draft202012Validator(as_python(made), format_checker=FORMATS)
        for answer in reply["answers"]:
            if answer is None:
                unfinished += 1
                continue
            answers += 1
            try:
                problem = next(iter(validator.iter_errors(json.loads(answer))), None)
            except ValueError as error:
                problem = error
            if problem is not None:
                wrong += 1
                if wrong <= 10:
                    print(f"seed {i}: {json.dumps(made)}\n  gave {answer!r}\n  {str(problem).splitlines()[0]}")
    probe.stdin.close()
    probe.wait()
    print(f"{count} schemas: {followed} followed, {count - followed} refused; {answers} answers, {wrong} not valid, "
          f"{unfinished} unfinished")
    for why, times in sorted(refused.items(), key=lambda entry: -entry[1])[:30]:
        print(f"  refused {times}: {why}")
    if wrong or unfinished > answers // 100 or followed < count // 4:
        sys.exit(1)


main()
