"""Writes pairs.json: math-verify's verdicts on 640 pairs of a ground truth and an answer.

Requirements: math-verify==0.9.0 latex2sympy2_extended==1.11.0 sympy==1.14.0. Run it in this folder.

The pairs are written here in the kinds of answers that MATH, DeepMath and NuminaMath have; none is taken from them. Each
ground truth comes with notations of the same value and with near misses. Both sides are parsed from a box.
"""

import json
import random

from math_verify import parse, verify

random.seed(37)
NUM_PAIRS = 640
pairs = []


def add(kind, truth, equal, different):
    pairs.extend((kind, truth, answer) for answer in [*equal, *different])


def integers():
    for n in (7, -3, 42, 0, 144, 2024):
        add("integer", f"{n}", [f"{n}.0", f"${n}$", f"{2 * n}/2", f"x = {n}"], [f"{n + 1}", f"-{abs(n) + 1}"])
    for n, s in ((1000, "1,000"), (25600, "25{,}600"), (1234567, "1,234,567"), (10080, "10,\\!080")):
        add("thousands", f"{n}", [s], [f"{n // 10}"])
        add("thousands", s, [f"{n}"], [f"{n + 1}"])


def fractions():
    for a, b in ((1, 2), (3, 4), (7, 8), (2, 3), (5, 12), (22, 7), (9, 10)):
        add(
            "fraction", f"\\frac{{{a}}}{{{b}}}",
            [f"{a}/{b}", f"\\dfrac{{{2 * a}}}{{{2 * b}}}", f"\\tfrac{{{a}}}{{{b}}}", f"\\left(\\frac{{{a}}}{{{b}}}\\right)"],
            [f"\\frac{{{b}}}{{{a}}}", f"{a}{b}", f"-\\frac{{{a}}}{{{b}}}"],
        )
    add("fraction", "-\\frac{1}{2}", ["-\\frac12", "\\frac{-1}{2}", "-0.5", "-1/2", "\\frac{1}{-2}"], ["0.5", "-2"])
    add("fraction", "\\frac34", ["0.75", ".75", "\\frac{3}{4}", "3/4", "75\\%"], ["0.7", "0.34"])
    add("mixed number", "3\\frac{1}{2}", ["\\frac{7}{2}", "3.5"], ["\\frac{3}{2}"])
    add("mixed number", "\\frac{13}{4}", ["3\\frac14", "3.25", "3 \\frac{1}{4}"], ["\\frac{4}{13}"])
    for truth, right, wrong in (("\\frac{1}{3}", "0.333333", "0.33"), ("\\frac{2}{3}", "0.666667", "0.6"), ("\\frac{1}{7}", "0.142857", "0.14")):
        add("rounded", truth, [right], [wrong])


def roots():
    for square, rest in ((2, 2), (3, 5), (5, 3), (4, 7), (11, 2)):
        n = square * square * rest
        add(
            "root", f"{square}\\sqrt{{{rest}}}",
            [f"\\sqrt{{{n}}}", f"{square}\\sqrt {rest}", f"\\sqrt{rest}\\cdot {square}", f"{square} \\times {rest}^{{1/2}}"],
            [f"{rest}\\sqrt{{{square}}}", f"\\sqrt{{{n + 1}}}", f"{square}"],
        )
    add("root", "\\frac{\\sqrt{2}}{2}", ["\\frac{1}{\\sqrt{2}}", "\\frac{\\sqrt2}2", "\\sqrt{\\frac{1}{2}}", "2^{-1/2}"], ["\\sqrt{2}", "\\frac{2}{\\sqrt 3}"])
    add("root", "1+\\sqrt{3}", ["\\sqrt3+1", "\\frac{2}{\\sqrt{3}-1}", "\\sqrt{4+2\\sqrt{3}}"], ["1-\\sqrt{3}", "\\sqrt{4}"])
    add("root", "\\sqrt[3]{4}", ["4^{1/3}", "2^{2/3}", "\\sqrt[6]{16}"], ["\\sqrt{4}", "4"])
    add("root", "\\frac{3+\\sqrt{5}}{2}", ["\\frac{\\sqrt5+3}{2}", "1.5+\\frac{\\sqrt{5}}{2}"], ["\\frac{3-\\sqrt{5}}{2}"])
    add("root", "-2+\\sqrt{7}", ["\\sqrt{7}-2", "\\frac{3}{2+\\sqrt7}"], ["2-\\sqrt{7}"])


def constants():
    add("pi", "2\\pi", ["\\pi\\cdot 2", "2 \\pi", "\\frac{4\\pi}{2}", "6.283185"], ["\\pi", "6.28", "2"])
    add("pi", "\\frac{\\pi}{6}", ["\\pi/6", "\\frac{1}{6}\\pi"], ["30^\\circ", "\\frac{6}{\\pi}"])
    add("pi", "36\\pi", ["36 \\pi", "\\pi 36"], ["36", "32\\pi"])
    add("pi", "\\frac{\\pi^2}{6}", ["\\frac{1}{6}\\pi^2", "\\pi^{2}/6"], ["\\frac{\\pi}{6}", "\\frac{\\pi^2}{8}"])
    add("e", "e^2", ["e^{2}", "e \\cdot e", "\\exp(2)"], ["2e", "e"])
    add("e", "\\frac{1}{e}", ["e^{-1}", "1/e"], ["e", "-e"])
    add("logarithm", "\\ln 2", ["\\ln(2)", "\\frac{1}{2}\\ln 4", "\\ln{2}"], ["\\ln 3", "2"])
    add("logarithm", "\\log_2 3", ["\\frac{\\ln 3}{\\ln 2}", "\\log_{2}{3}"], ["\\log_3 2"])
    add("logarithm", "\\frac{\\pi \\ln 2}{2}", ["\\frac{\\pi}{2}\\ln 2", "\\frac{\\pi}{4} \\ln 4"], ["\\pi \\ln 2"])
    add("infinity", "\\infty", ["+\\infty"], ["-\\infty", "0"])
    add("infinity", "-\\infty", ["- \\infty"], ["\\infty"])
    add("trigonometry", "\\sin 20^\\circ", ["\\sin(20^\\circ)"], ["\\cos 20^\\circ"])
    add("trigonometry", "2\\cos x", ["2 \\cos(x)", "\\cos x + \\cos x"], ["\\cos 2x", "2 \\sin x"])
    add("trigonometry", "\\sin 2x", ["2\\sin x\\cos x"], ["\\sin x"])
    add("complex", "3+4i", ["4i+3", "3 + 4 i"], ["3-4i", "5", "4+3i"])
    add("complex", "-2i", ["-2 i", "0-2i"], ["2i", "-2"])


def powers():
    add("power", "2^{10}", ["1024", "4^5", "2^5\\cdot 2^5"], ["2^{11}", "20", "210"])
    add("power", "2^{2024}", ["4^{1012}"], ["2^{2023}"])
    add("power", "5!", ["120", "5 \\cdot 4!"], ["5", "4!"])
    add("binomial", "\\binom{10}{3}", ["120", "\\dbinom{10}{7}"], ["720", "\\binom{10}{4}"])
    add("power", "3^{n+1}", ["3\\cdot 3^n", "3^{1+n}"], ["3^n", "3^{n}+1"])
    add("power", "6.02\\times 10^{23}", ["6.02 \\cdot 10^{23}"], ["6.02\\times 10^{22}"])
    add("power", "1.5\\times 10^{3}", ["1500", "1.5 \\cdot 10^3"], ["150"])


def money_and_units():
    for n, unit in ((5, "cm"), (12, "meters"), (30, "minutes"), (7, "inches"), (18, "feet"), (45, "mph"), (9, "square units")):
        add("unit", f"{n}\\text{{ {unit}}}", [f"{n}", f"{n} \\text{{ {unit}}}", f"{n}\\,\\text{{{unit}}}"], [f"{n + 1}\\text{{ {unit}}}"])
    add("unit", "24\\text{ cm}^2", ["24", "24\\text{ cm}^{2}"], ["23"])
    add("unit", "15", ["15\\text{ dollars}", "15 cm", "15\\mathrm{~m}"], ["51 cm"])
    add("degree", "60^\\circ", ["60", "60^{\\circ}", "60 \\text{ degrees}"], ["120^\\circ", "6"])
    add("money", "\\$12.50", ["12.50", "12.5", "\\$12.5", "\\frac{25}{2}"], ["\\$12.05", "1250"])
    add("money", "\\$1,200", ["1200", "\\$1200"], ["1.2", "12"])
    for n in (20, 50, 75, 8):
        add("percent", f"{n}\\%", [f"{n}", f"{n / 100}", f"\\frac{{{n}}}{{100}}", f"{n} \\%", f"{n}\\text{{ percent}}"], [f"{n + 1}\\%", f"{n / 10}"])
    add("percent", "12.5\\%", ["0.125", "\\frac{1}{8}"], ["12.5", "1.25"])
    add("ratio", "3:4", ["\\frac{3}{4}", "6:8"], ["4:3", "7"])
    add("base", "52_8", ["52_{8}", "52"], ["53_8"])


def expressions():
    add("polynomial", "x^2+2x+1", ["(x+1)^2", "1+2x+x^2", "x(x+2)+1"], ["x^2+2x", "(x-1)^2", "x^2+1"])
    add("polynomial", "x^3-3x^2+3x-1", ["(x-1)^3", "(x-1)(x-1)^2"], ["(x+1)^3"])
    add("polynomial", "2a+3b", ["3b+2a", "2 a + 3 b"], ["2b+3a", "5ab"])
    add("polynomial", "(x-2)(x+2)", ["x^2-4", "(x+2)(x-2)"], ["x^2+4", "x-2"])
    add("polynomial", "6xy", ["6yx", "2x\\cdot 3y"], ["6x+y", "6"])
    add("polynomial", "-x+5", ["5-x", "-(x-5)"], ["x-5", "x+5"])
    add("polynomial", "\\frac{n(n+1)}{2}", ["\\frac{n^2+n}{2}", "\\frac{1}{2}n(n+1)", "0.5n(n+1)"], ["\\frac{n(n-1)}{2}", "n(n+1)"])
    add("quotient", "\\frac{x+1}{x-1}", ["1+\\frac{2}{x-1}", "\\frac{1+x}{x-1}", "-\\frac{x+1}{1-x}"], ["\\frac{x-1}{x+1}"])
    add("quotient", "\\frac{1}{x}+\\frac{1}{y}", ["\\frac{x+y}{xy}"], ["\\frac{1}{x+y}", "\\frac{2}{xy}"])
    add("expression", "\\sqrt{x+1}", ["(x+1)^{1/2}", "\\sqrt{1+x}"], ["\\sqrt{x}+1", "x+1"])
    add("expression", "e^{-x}", ["\\frac{1}{e^x}", "e^{- x}"], ["e^x", "-e^x"])
    add("expression", "\\frac{e^x+e^{-x}}{2}", ["\\frac{1}{2}(e^x+e^{-x})"], ["\\frac{e^x-e^{-x}}{2}"])
    add("expression", "a_n+a_{n+1}", ["a_{n+1}+a_n"], ["a_n"])
    add("expression", "x+C", ["C+x"], ["x"])
    add("expression", "|x-1|", ["|1-x|", "\\left|x-1\\right|"], ["x-1", "|x+1|"])
    add("expression", "\\frac{a+b}{2}", ["\\frac{b+a}{2}", "\\frac a2+\\frac b2"], ["\\sqrt{ab}"])
    add("expression", "\\alpha+\\beta", ["\\beta+\\alpha"], ["\\alpha-\\beta"])


def equations():
    add("equation", "y=2x+1", ["2x-y+1=0", "y = 1 + 2x", "y-2x=1", "2x+1"], ["y=2x-1", "y=x+2"])
    add("equation", "x^2+y^2=25", ["y^2+x^2=25", "x^2+y^2-25=0", "25=x^2+y^2"], ["x^2-y^2=25", "x^2+y^2=5"])
    add("equation", "x=3", ["3", "x = 3.0", "3=x"], ["y=3", "x=-3"])
    add("equation", "f(x)=x^2+1", ["x^2+1", "f(x)=1+x^2", "1+x^2"], ["f(x)=x^2-1", "x^2"])
    add("equation", "7", ["x=7", "n = 7", "2+5=7"], ["x=8"])
    add("equation", "2x+3y=6", ["4x+6y=12", "3y+2x-6=0"], ["2x+3y=5", "3x+2y=6"])
    add("inequality", "x<3", ["3>x", "x < 3"], ["x>3", "x\\le 3"])
    add("inequality", "x\\ge -2", ["x \\geq -2", "-2\\le x", "[-2,\\infty)"], ["x>-2", "(-2,\\infty)"])
    add("inequality", "1<x<5", ["(1,5)", "1 < x < 5"], ["[1,5]", "1<x<6", "1\\le x<5"])


def collections():
    add("set", "\\{1,2,3\\}", ["\\{3,2,1\\}", "1,2,3", "\\left\\{1, 2, 3\\right\\}"], ["\\{1,2\\}", "\\{1,2,4\\}"])
    add("set", "\\{-1,\\frac{1}{2}\\}", ["\\{0.5,-1\\}", "\\frac12,-1"], ["\\{1,\\frac{1}{2}\\}"])
    add("set", "\\emptyset", ["\\emptyset"], ["\\{0\\}", "0"])
    add("list", "1,2", ["2,1", "1, 2", "1 \\text{ and } 2", "x=1,x=2", "x=1 \\text{ or } x=2"], ["1,3", "1", "12"])
    add("list", "-2,3", ["3,-2", "3, -2"], ["2,-3", "-2"])
    add("list", "\\pm 3", ["3,-3", "-3, 3"], ["3", "\\pm 2"])
    add("list", "1\\pm\\sqrt{2}", ["1+\\sqrt{2},1-\\sqrt{2}", "1-\\sqrt2, 1+\\sqrt2"], ["1+\\sqrt{2}", "2\\pm\\sqrt{1}"])
    for a, b in ((1, 2), (3, -4), (0, 5), (-2, -7)):
        add("point", f"({a},{b})", [f"({a}, {b})", f"\\left({a},{b}\\right)", f"({a}.0,{b})"], [f"({b},{a})", f"({a},{b + 1})"])
    add("point", "(1,2,3)", ["(1, 2, 3)", "\\left(1,2,\\frac{6}{2}\\right)"], ["(3,2,1)", "(1,2)"])
    add("point", "\\left(3,\\frac{\\pi}{2}\\right)", ["(3,\\pi/2)", "(3, \\frac{1}{2}\\pi)"], ["(3,\\pi)", "(\\frac{\\pi}{2},3)"])
    add("interval", "[0,1]", ["[0, 1]", "\\left[0,1\\right]", "[0,1.0]"], ["(0,1)", "[0,1)", "[0,2]"])
    add("interval", "(-\\infty,3]", ["(-\\infty, 3]", "\\left(-\\infty,3\\right]"], ["(-\\infty,3)", "[3,\\infty)"])
    add("interval", "(-\\infty,-1)\\cup(1,\\infty)", ["(1,\\infty)\\cup(-\\infty,-1)", "(-\\infty,-1) \\cup (1, \\infty)"], ["(-1,1)", "(-\\infty,-1]\\cup[1,\\infty)"])
    add("matrix", "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", ["\\begin{bmatrix}1&2\\\\3&4\\end{bmatrix}", "\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}"], ["\\begin{pmatrix}1&3\\\\2&4\\end{pmatrix}"])
    add("matrix", "\\begin{pmatrix}1\\\\-2\\end{pmatrix}", ["\\begin{bmatrix}1\\\\-2\\end{bmatrix}"], ["\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix}1&-2\\end{pmatrix}"])


def texts():
    for word, other in (("Yes", "No"), ("True", "False"), ("even", "odd"), ("Monday", "Friday"), ("ellipse", "hyperbola")):
        add("text", f"\\text{{{word}}}", [word, f"\\text{{{word.lower()}}}", f"\\textbf{{{word}}}"], [f"\\text{{{other}}}", other])
    for letter, other in (("A", "B"), ("C", "D"), ("E", "A")):
        add("choice", letter, [f"\\text{{{letter}}}", f"\\text{{({letter})}}", f"\\textbf{{({letter})}}", f"\\mathrm{{{letter}}}"], [other, f"\\text{{({other})}}"])


def plain_numbers():
    while len(set(pairs)) < NUM_PAIRS:
        a, b, c = random.randint(2, 60), random.randint(2, 30), random.randint(2, 9)
        kind, truth, answer = random.choice((
            ("sum", f"\\frac{{{a}}}{{{b}}}+\\frac{{1}}{{{c}}}", f"\\frac{{{a * c + b}}}{{{b * c}}}"),
            ("sum", f"\\frac{{{a}}}{{{b}}}", f"\\frac{{{a + 1}}}{{{b}}}"),
            ("root", f"{c}\\sqrt{{{b}}}", f"\\sqrt{{{c * c * b}}}"),
            ("root", f"{c}\\sqrt{{{b}}}", f"\\sqrt{{{c * b}}}"),
            ("polynomial", f"(x+{c})(x-{b})", f"x^2+{c - b}x-{c * b}".replace("+-", "-")),
            ("decimal", f"{a * b / 4}", f"\\frac{{{a * b}}}{{4}}"),
            ("decimal", f"{a}.{c}", f"{a}.{c}0"),
        ))
        pairs.append((kind, truth, answer))


for write in (integers, fractions, roots, constants, powers, money_and_units, expressions, equations, collections, texts, plain_numbers):
    write()


def verdict(truth, answer):
    return bool(verify(parse(f"\\boxed{{{truth}}}"), parse(f"\\boxed{{{answer}}}")))


distinct = list(dict.fromkeys(pairs))
assert len(distinct) == NUM_PAIRS, len(distinct)
rows = [json.dumps({"kind": k, "truth": t, "answer": a, "equal": verdict(t, a)}) for k, t, a in distinct]
with open("pairs.json", "w") as file:
    file.write('{"source": "math-verify 0.9.0", "pairs": [\n' + ",\n".join(rows) + "\n]}\n")
print(len(rows), "pairs,", sum('"equal": true' in row for row in rows), "equal")
