"""Writes notations.json: math-verify's verdicts on the notations in which completions state an answer.

Requirements: math-verify==0.9.0 latex2sympy2_extended==1.11.0 sympy==1.14.0. Run it in this folder.

Each ground truth comes with notations of the same value, with near misses, and with notations that neither
math-verify nor `Math` reads. Both sides are parsed from a box.
"""

import json

from math_verify import parse, verify

pairs = []


def add(kind, truth, *answers):
    pairs.extend((kind, truth, answer) for answer in answers)

add(
    "thousands", "1234567", "1,234,567", "1 234 567", "1\\,234\\,567", "1\\;234\\;567", "1\\ 234\\ 567",
    "1_234_567", "1.234.567", "12,34,567", "1, 234, 567", "1{,}234{,}567", "1234567.00", "1234567.",
)
add("thousands", "12345.67", "12,345.67", "12345,67", "$12,345.67$")
add("thousands", "(1000,2000)", "(1{,}000, 2{,}000)", "(1,000, 2,000)")
add(
    "currency", "\\$1,200.50", "1200.5", "\\$1200.50", "1,200.50 dollars", "\\text{USD }1200.50", "€1200.50",
    "1200.50\\text{ dollars}", "1200.50 USD", "Rs. 1200.50", "\\text{Rs }1200.50", "1200.50 \\$",
    "\\pounds 1200.50", "£1200.50", "¥1200.5", "₹1200.50", "$1,200.50",
)
add(
    "percent", "25\\%", "25", "0.25", "25%", "25 percent", "25\\text{ percent}", "25 \\text{ per cent}",
    "\\frac14", "$25\\%$", "\\text{25\\%}", "25 pct", "25\\,\\%", "25.0\\%", "2500\\%", "0.25\\%",
)
add("percent", "25", "25\\%", "25%")
add("percent", "0.25", "25\\%", "25%")
add("percent", "\\frac{1}{4}", "25\\%")
add("percent", "33\\frac{1}{3}\\%", "33.333333\\%", "\\frac{1}{3}", "33 1/3 %", "33\\frac13")
add(
    "degrees", "45^\\circ", "45", "45°", "45 degrees", "45\\text{ degrees}", "45\\degree", "45^{\\circ}",
    "45^o", "45^\\text{o}", "\\ang{45}", "45^{\\circ}\\text{C}", "45^\\circ C", "45 \\deg",
)
add("degrees", "20^\\circ 30'", "20.5^\\circ")
add(
    "unit", "12", "12\\text{ cm}", "12\\text{cm}", "12 cm", "12\\,\\text{cm}^2", "12\\text{ cm}^2",
    "12\\text{ cm}^{2}", "12 cm^2", "12\\mathrm{cm}", "12\\ \\text{km/h}", "12 km/h", "12\\text{ m/s}",
    "12\\;\\mathrm{m/s^2}", "12 m", "12\\text{ m}", "12 s", "12 hours", "12\\text{ square units}",
    "12 \\text{ cubic feet}", "12\\text{th}", "12^{\\text{th}}", "12^{th}", "12\\mathrm{~km}",
    "12\\text{ apples}", "12 apples", "12 students", "12 kg", "12\\text{ miles per hour}", "12\\unit{cm}",
    "12\\si{cm}", "12\\text{ integers}", "12 ways", "12 \\textbf{ ways}", "12 years old", "12 eggs",
    "12\\text{ p.m.}", "12\\,\\mathrm{m}^3", "12\\ \\mathrm{cm}", "12 \\text{ Joules}", "12\\text{J}", "12 J",
    "12 units^2", "\\text{about }12", "12\\text{ years}", "12 mi", "12 min", "12 in", "12\\text{ in}",
    "12\\text{ in}^2", "12 ft", "12 square feet", "12:00",
)
add("unit", "12\\text{ cm}", "12\\text{ m}", "12\\text{ m}^2", "0.12\\text{ m}", "12 cm")
add(
    "mixed", "3\\frac{1}{2}", "3.5", "\\frac{7}{2}", "3 1/2", "3\\ \\frac{1}{2}", "3\\,\\frac12",
    "3\\dfrac12", "3\\tfrac{1}{2}", "3 \\frac{1}{2}", "3+\\frac12", "\\frac{3}{2}", "3-1/2", "3½",
)
add("mixed", "-3\\frac{1}{2}", "-3.5", "-\\frac{7}{2}", "-2.5")
add("mixed", "\\frac{7}{2}", "3\\frac12", "3 1/2", "7/2", "3½")
add(
    "repeating", "\\frac{1}{3}", "0.\\overline{3}", "0.\\bar{3}", "0.\\dot{3}", "0.333...", "0.333\\ldots",
    "0.(3)", "0.3\\overline{3}", "0.33333", "0.333333", "0.3333333333333333", "0.333", "0.33333\\ldots",
    ".\\overline{3}", "0.3",
)
add("repeating", "0.\\overline{3}", "1/3", "\\frac13", "0.333333", "0.\\bar3", "0.3")
add("repeating", "\\frac{7}{11}", "0.\\overline{63}", "0.636363", "0.6\\overline{36}", "0.63")
add("repeating", "0.1\\overline{6}", "\\frac16", "0.16", "0.166667")
add(
    "fraction", "\\frac{1}{2}", "1/2", "½", "\\frac12", "\\frac1{2}", "\\frac{1}2", "\\dfrac{1}{2}",
    "\\tfrac12", "\\cfrac12", "0.5", "0.50", ".5", "1 / 2", "\\frac {1}{2}", "\\frac{1} {2}", "\\frac 1 2",
    "\\frac 12", "\\frac{ 1 }{ 2 }", "{1}/{2}", "(1)/(2)", "1\\div 2", "1 ÷ 2", "1:2", "2^{-1}",
    "\\nicefrac{1}{2}", "\\sfrac12", "\\frac{1.0}{2.0}", "1\\over 2", "{1\\over2}", "\\frac{-1}{-2}",
    "5\\cdot 10^{-1}", "\\left(\\frac{1}{2}\\right)", "\\left.\\frac12\\right.", "1⁄2", "1 out of 2",
    "frac{1}{2}", "\\\\frac{1}{2}", "\\frac{\\sqrt{1}}{2}", "2/1", "-\\frac12", "(1/2)", "1\\slash 2",
    "\\frac{1}{2}\\text{ or }0.5", "\\frac{1}{2}=0.5", "0.5 = \\frac12", "\\approx 0.5",
    "\\frac12\\approx 0.5", "\\displaystyle\\frac12", "\\large\\frac12", "{\\frac12}", "\\bf{\\frac12}",
    "\\mathbf{\\frac12}", "\\boxed{\\frac12}", "\\text{\\frac12}", "\\text{$\\frac12$}", "\\frac{1}{2}.",
    "\\frac{1}{2},", "\\color{red}\\frac12", "\\textcolor{red}{\\frac12}", "\\underline{\\frac12}",
    "\\fbox{1/2}", "P=\\frac12", "P(A)=\\frac12", "\\frac{1}{2}\\%", "**1/2**", "`1/2`", "<1/2>", "\"1/2\"",
    "p = 1/2", "\\frac{1}{2}\\quad", "\\(\\frac12\\)", "$$\\frac12$$", "\\[\\frac12\\]",
    "1/2 \\text{ (one half)}", "\\phantom{0}\\frac12",
)
add(
    "scientific", "1.5\\times 10^{8}", "150000000", "1.5e8", "1.5E8", "1.5 × 10^8", "1.5 \\cdot 10^8",
    "1.5*10^8", "1.5*10**8", "1.5 x 10^8", "1.5\\times10^8\\text{ m}", "15\\times 10^7", "1.5\\times 10^{-8}",
    "1.5\\times 10^9", "1.5\\times10^{+8}", "150{,}000{,}000", "1.5e+8",
)
add("scientific", "0.00001", "10^{-5}", "1e-5", "1E-05", "1\\times 10^{-5}", "0.000010", "0.00002")
add(
    "minus", "-5", "−5", "–5", "- 5", "\\minus 5", "—5", "(-5)", "-\\!5", "{-5}", "-5.0", "5", "+5",
    "\\text{-5}", "\\text{minus }5", "‐5", "\\text{−5}", "$-5$", "--5",
)
add(
    "boxed", "5", "\\boxed{5}", "\\text{5}", "\\textbf{5}", "\\mathbf{5}", "\\bf 5", "{5}", "((5))",
    "\\underline{5}", "five", "5.", "5!", "'5'", "5\\\\", "\\ 5\\ ", "\\text{The answer is }5",
    "The answer is 5", "Answer: 5", "x=5", "x\\to 5", "n = 5", "x=2+3=5", "2+3=5", "a_1 = 5", "f(2)=5",
    "|AB|=5", "AB=5", "\\angle A=5", "\\overline{AB}=5", "x \\equiv 5", "x = 5\\text{ cm}", "x≈5",
    "x\\approx5.0", "k=5, ", "=5", "5=5", "5 = x", "x=5 \\text{ or } x=5", "\\text{Total}=5",
    "\\text{Area}=5", "total = 5", "\\lfloor 5.5 \\rfloor", "\\lceil 4.5\\rceil", "\\max(5,3)", "\\sqrt{25}",
    "|{-5}|", "\\left|-5\\right|", "5\\pmod{7}", "5 \\bmod 7", "5\\ (\\text{mod }7)", "5_{10}", "5^1", "5x^0",
    "5\\checkmark", "5\\blacksquare", "5\\square", "5 \\qquad", "\\#5", "5\\&", "5\\_", "05", "005", "+5",
    "5e0", "five (5)", "5 (five)", "\\text{five}", "V",
)
add(
    "equation", "x=5", "5", "y=5", "x = 5.0", "5=x", "x=5\\text{ cm}", "x=10/2", "2x=10", "x-5=0", "x=6",
    "x:5", "x\\in\\{5\\}", "\\{5\\}", "x = 5, y = 3", "\\{x=5\\}", "X=5",
)
add(
    "equation", "x=1,y=2", "x=1, y=2", "(1,2)", "y=2,x=1", "1,2", "x=2,y=1", "(x,y)=(1,2)",
    "x=1\\text{ and }y=2", "x=1;y=2", "\\begin{cases}x=1\\\\y=2\\end{cases}",
)
add("equation", "(x,y)=(1,2)", "(1,2)", "(x, y) = (1, 2)", "x=1,y=2", "1,2", "(2,1)")
add(
    "equation", "y=2x+3", "2x+3", "y = 3+2x", "f(x)=2x+3", "2x-y=-3", "y-2x-3=0", "y=2x-3", "y=2(x+1.5)",
)
add(
    "equation", "x^2+y^2=1", "y^2+x^2=1", "x^2+y^2-1=0", "2x^2+2y^2=2", "y=\\sqrt{1-x^2}",
    "\\frac{x^2}{1}+\\frac{y^2}{1}=1",
)
add(
    "equation", "\\frac{x^2}{4}+\\frac{y^2}{9}=1", "9x^2+4y^2=36", "\\frac{y^2}{9}+\\frac{x^2}{4}=1",
)
add(
    "equation", "x=\\frac{-1\\pm\\sqrt5}{2}", "\\frac{-1+\\sqrt{5}}{2},\\frac{-1-\\sqrt5}{2}",
    "\\frac{-1\\pm\\sqrt5}{2}", "x=\\frac{-1+\\sqrt{5}}{2}",
)
add(
    "equation", "x=2\\text{ or }x=3", "2,3", "x=3\\text{ or }x=2", "x=2,3", "\\{2,3\\}", "x\\in\\{2,3\\}",
    "x=2", "x_1=2,x_2=3", "2 or 3", "2\\text{ or }3", "x = 2 \\lor x = 3",
)
add(
    "interval", "(2,5)", "]2,5[", "2<x<5", "x\\in(2,5)", "\\{x|2<x<5\\}", "\\{x\\mid 2<x<5\\}",
    "\\{x:2<x<5\\}", "\\{x\\in\\mathbb{R}:2<x<5\\}", "(2;5)", "\\left(2,5\\right)", "[2,5]", "(2, 5)",
    "(5,2)", "x>2\\text{ and }x<5", "(2,5.0)", "5>x>2", "\\langle2,5\\rangle", "\\left]2,5\\right[",
)
add(
    "interval", "[2,\\infty)", "x\\geq2", "x\\ge 2", "x≥2", "2\\le x", "[2,+\\infty)", "[2,∞)", "[2, inf)",
    "x>=2", "x\\geqslant 2", "x>2", "2\\leq x<\\infty", "\\left[2,\\infty\\right)", "\\{x|x\\ge2\\}",
    "x \\in [2,\\infty)", "[2,\\infty]", "(2,\\infty)",
)
add(
    "interval", "(-\\infty,0)\\cup(0,\\infty)", "(0,\\infty)\\cup(-\\infty,0)",
    "\\mathbb{R}\\setminus\\{0\\}", "x\\ne0", "x\\neq 0", "(-\\infty,0)\\cup(0,+\\infty)",
    "(-\\infty,0) \\bigcup (0,\\infty)", "x<0\\text{ or }x>0", "(-∞,0)∪(0,∞)",
    "\\mathbb{R}\\backslash\\{0\\}", "(-\\infty,0]\\cup[0,\\infty)",
)
add("interval", "[1,2)\\cup\\{3\\}", "\\{3\\}\\cup[1,2)", "[1,2) \\cup {3}")
add(
    "interval", "(-\\infty,-1]\\cup[1,\\infty)", "x\\le-1\\text{ or }x\\ge1", "x\\leq -1 or x\\geq 1",
    "|x|\\ge1",
)
add(
    "set", "\\{1,2,3\\}", "1,2,3", "\\{3,2,1\\}", "{1,2,3}", "\\left\\{1,2,3\\right\\}", "\\{1;2;3\\}",
    "(1,2,3)", "[1,2,3]", "1, 2, 3", "1,2,\\text{ and }3", "1, 2 and 3", "1,2, and 3", "\\{1,2,3,3\\}",
    "\\lbrace1,2,3\\rbrace", "1;2;3", "\\{1,2\\}\\cup\\{3\\}", "1\\text{ and }2\\text{ and }3",
    "\\text{1, 2, 3}", "x=1,2,3", "S=\\{1,2,3\\}", "{3, 2, 1}", "\\{1, 2, \\ldots, 3\\}",
    "\\{1\\}\\cup\\{2,3\\}", "1\\quad 2\\quad 3", "1,\\ 2,\\ 3", "1, \\, 2, \\, 3", "x\\in\\{1,2,3\\}",
)
add(
    "set", "\\emptyset", "\\varnothing", "\\{\\}", "\\text{no solution}", "∅", "\\phi", "\\text{None}",
)
add(
    "set", "\\{(1,2),(3,4)\\}", "(1,2),(3,4)", "(3,4),(1,2)", "\\{(3,4),(1,2)\\}", "(1,2)\\text{ and }(3,4)",
    "\\{(2,1),(3,4)\\}",
)
add(
    "list", "1, 2", "1,2", "2,1", "(1,2)", "1 and 2", "1\\text{ and }2", "\\{1,2\\}", "1;2", "12", "[1,2]",
    "x=1,x=2", "1 , 2", "1\\ 2",
)
add(
    "tuple", "(1,2)", "(1, 2)", "1,2", "(2,1)", "[1,2]", "\\left(1,2\\right)", "\\langle1,2\\rangle",
    "\\begin{pmatrix}1\\\\2\\end{pmatrix}", "(1;2)", "(1.0,2.0)", "x=1,y=2", "(1,2,3)", "P(1,2)", "A=(1,2)",
    "\\bigl(1,2\\bigr)", "(1,2)\\text{ or }(2,1)", "(\\frac{2}{2},2)", "1, 2", "( 1 , 2 )",
)
add(
    "matrix", "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{bmatrix}1&2\\\\3&4\\end{bmatrix}",
    "\\begin{pmatrix}1 & 2 \\\\ 3 & 4 \\\\ \\end{pmatrix}",
    "\\left(\\begin{array}{cc}1&2\\\\3&4\\end{array}\\right)", "\\begin{vmatrix}1&2\\\\3&4\\end{vmatrix}",
    "\\begin{pmatrix}1&2\\\\3&\\frac{8}{2}\\end{pmatrix}",
    "\\left[\\begin{matrix}1&2\\\\3&4\\end{matrix}\\right]", "[[1,2],[3,4]]",
    "\\begin{pmatrix}1&2\\\\3&5\\end{pmatrix}", "\\begin{Bmatrix}1&2\\\\3&4\\end{Bmatrix}",
    "A=\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{pmatrix}1&2\\cr3&4\\end{pmatrix}",
    "\\begin{pmatrix} 1 & 2 \\\\[1ex] 3 & 4 \\end{pmatrix}",
    "\\begin{smallmatrix}1&2\\\\3&4\\end{smallmatrix}",
)
add("matrix", "2\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix}2\\\\4\\end{pmatrix}")
add(
    "matrix", "\\begin{pmatrix}1\\\\2\\\\3\\end{pmatrix}", "(1,2,3)",
    "\\begin{bmatrix}1\\\\2\\\\3\\end{bmatrix}", "\\begin{pmatrix}1\\\\2\\\\3.0\\end{pmatrix}",
    "\\langle1,2,3\\rangle", "1,2,3",
)
add(
    "inequality", "x<3", "3>x", "x<3.0", "x\\lt3", "(-\\infty,3)", "x\\le3", "-x>-3", "2x<6", "x - 3 < 0",
    "x<\\frac{6}{2}", "y<3", "x < 3 ",
)
add(
    "inequality", "-2\\le x\\le 2", "[-2,2]", "|x|\\le2", "2\\ge x\\ge-2", "-2 \\leq x \\leq 2",
    "x\\in[-2,2]", "-2<x<2", "x^2\\le4",
)
add(
    "choice", "B", "(B)", "\\text{B}", "\\text{(B)}", "\\textbf{(B)}", "b", "(b)", "B.", "B)", "\\mathrm{B}",
    "\\mathbf{B}", "\\textbf{(B) }5", "\\text{(B) }5", "\\text{(B)}\\ 5", "B) 5", "(B) 5", "B: 5",
    "\\text{Option B}", "option B", "A", "\\text{(C)}", "\\textbf{B}", "\\text{B.}", "[B]",
    "\\textbf{(B)}\\ \\frac12", "choice B", "\\text{B }", "{B}", "\\textit{B}", "\\textrm{(B)}",
    "\\textbf{ (B)}", "\\textbf{B)}", "$B$", "Ｂ",
)
add("choice", "\\text{(B)}", "B", "(B)", "b", "\\textbf{B}", "C")
add("choice", "A,C", "A, C", "C,A", "AC", "A and C", "\\text{A, C}", "\\text{A and C}", "A, B")
add(
    "pm", "\\pm2", "2,-2", "-2,2", "\\{-2,2\\}", "±2", "+2,-2", "2", "x=\\pm2", "\\pm 2.0", "2\\text{ or }-2",
    "+/-2", "\\mp2", "2 and -2",
)
add(
    "pm", "3\\pm\\sqrt2", "3+\\sqrt2,3-\\sqrt2", "3-\\sqrt{2},3+\\sqrt{2}", "3±√2", "3\\pm 1.414214",
    "3\\mp\\sqrt2", "3\\pm\\sqrt3", "\\{3\\pm\\sqrt2\\}",
)
add("pm", "(\\pm1,2)", "(1,2),(-1,2)", "(\\pm 1, 2)")
add(
    "sqrt", "2\\sqrt{2}", "\\sqrt{8}", "√8", "2√2", "2\\sqrt2", "2 \\sqrt 2", "2*sqrt(2)", "2sqrt(2)",
    "sqrt(8)", "2*2^(1/2)", "2 \\times \\sqrt{2}", "8^{1/2}", "8^{\\frac12}", "2.828427", "2.83",
    "\\sqrt{4}\\sqrt{2}", "\\sqrt[2]{8}", "2^{3/2}", "2^{1.5}", "8^{0.5}", "2\\sqrt{(2)}",
    "\\sqrt{\\sqrt{64}}", "\\sqrt[4]{64}", "\\frac{4}{\\sqrt2}", "2\\cdot\\sqrt{2}", "2√{2}", "\\sqrt {8}",
    "\\sqrt 8", "\\sqrt3", "2.8284271247", "\\surd8", "2\\sqrt{2}\\text{ cm}", "2\\sqrt{2} units",
    "2\\root 2 \\of 2",
)
add(
    "sqrt", "\\sqrt{2+\\sqrt{3}}", "\\frac{\\sqrt6+\\sqrt2}{2}", "\\frac{\\sqrt{6}+\\sqrt{2}}{2}",
    "\\sqrt{\\sqrt3+2}", "\\frac{1+\\sqrt3}{\\sqrt2}", "1.931852", "\\sqrt{2+\\sqrt{5}}",
    "\\frac{\\sqrt6-\\sqrt2}{2}",
)
add(
    "sqrt", "\\sqrt{1+\\sqrt{2+\\sqrt{3}}}", "\\sqrt{1+\\sqrt{\\sqrt3+2}}",
    "\\sqrt{1+\\frac{\\sqrt6+\\sqrt2}{2}}",
)
add(
    "sqrt", "\\sqrt[3]{2}", "2^{1/3}", "2^{\\frac{1}{3}}", "\\sqrt[3]2", "∛2", "cbrt(2)", "\\sqrt[3] {2}",
    "1.259921", "\\sqrt{2}",
)
add(
    "sqrt", "\\sqrt{x^2+1}", "(x^2+1)^{1/2}", "(x^2+1)^{0.5}", "\\sqrt{1+x^2}", "x+1",
    "(1+x^2)^{\\frac{1}{2}}",
)
add(
    "sqrt", "\\frac{\\sqrt{3}}{3}", "\\frac{1}{\\sqrt3}", "\\sqrt{\\frac13}", "\\frac{\\sqrt3}3", "3^{-1/2}",
    "0.577350", "\\tan 30^\\circ", "\\tan\\frac{\\pi}{6}",
)
add(
    "log", "\\ln 2", "ln2", "ln(2)", "\\ln(2)", "\\log 2", "\\log_e 2", "\\frac12\\ln4", "-\\ln\\frac12",
    "0.693147", "\\log_{e}{2}", "\\ln{2}", "\\ln|2|", "\\mathrm{ln}\\,2", "\\operatorname{ln}2", "\\ln 3",
    "-\\ln 0.5", "\\text{ln}2", "\\ln\\left(2\\right)", "log(2)",
)
add(
    "log", "\\log_2 3", "\\log_23", "\\log_{2}{3}", "\\frac{\\ln3}{\\ln2}", "\\frac{\\log3}{\\log2}",
    "\\log_2(3)", "log_2(3)", "log_2 3", "1.584963", "\\log_3 2", "\\lg 3", "\\frac{1}{\\log_3 2}",
)
add(
    "log", "3", "\\log_{10}1000", "\\log 1000", "\\lg 1000", "\\log_2 8", "\\ln e^3", "\\log(1000)",
)
add(
    "log", "\\log 5", "\\lg 5", "\\log_{10} 5", "1-\\log 2", "\\ln 5", "0.69897", "\\frac{\\ln 5}{\\ln 10}",
)
add(
    "pi", "2\\pi", "2π", "2pi", "2*pi", "6.28", "6.283185", "2\\cdot\\pi", "\\pi2", "360^\\circ", "2\\pi r",
    "2 \\pi", "6.2831853", "2\\pi\\text{ rad}", "\\tau", "2\\times 3.14159265", "2\\pi\\text{ cm}^2", "2 pi",
    "6.28318",
)
add(
    "pi", "\\frac{\\pi}{3}", "\\pi/3", "60^\\circ", "\\frac13\\pi", "π/3", "1.047198", "\\frac{\\pi}3",
    "\\frac{1}{3}\\pi", "\\dfrac{\\pi}{3}\\text{ radians}", "pi/3", "\\frac{2\\pi}{6}", "\\pi\\div3",
)
add(
    "pi", "\\frac{\\pi}{4}+k\\pi", "k\\pi+\\frac{\\pi}{4}", "\\frac{\\pi}{4}+n\\pi", "\\frac{\\pi}{4}+\\pi k",
    "\\frac{\\pi+4k\\pi}{4}", "\\frac{\\pi}{4} + k\\pi, k\\in\\mathbb{Z}", "x=\\frac{\\pi}{4}+k\\pi",
)
add(
    "exponent", "x^{10}", "x^10", "x^{9}x", "x^{5\\cdot2}", "(x^5)^2", "x**10", "x^{10.0}", "x^1 0",
    "x^{(10)}", "x^(10)", "x^{11}",
)
add(
    "exponent", "2^{x+1}", "2^x*2", "2\\cdot2^x", "2^{1+x}", "2^x\\cdot 2", "2^{x}+1", "2^(x+1)",
    "e^{(x+1)\\ln2}", "4^{(x+1)/2}",
)
add(
    "exponent", "e^{2x}", "(e^x)^2", "e^{x}e^{x}", "\\exp(2x)", "e^(2x)", "\\exp{2x}", "\\mathrm{e}^{2x}",
    "\\text{e}^{2x}", "e^{2*x}", "e^2x", "e^{x^2}",
)
add(
    "exponent", "2^{100}", "1267650600228229401496703205376", "4^{50}", "2^{99}\\cdot2",
    "1.267650600228229e30", "2^{101}", "{2}^{100}", "2^{{100}}", "2^{10^2}", "(2^{10})^{10}",
)
add(
    "text", "\\text{Yes}", "yes", "Yes", "YES", "\\textbf{Yes}", "\\text{yes}", "Yes.", "\\text{Yes.}",
    "\\text{No}", "y", "True", "\\text{ Yes }", "\\mathrm{Yes}", "\\text{Yes, it is}", "Yes!",
    "\\texttt{Yes}", "\\text{\"Yes\"}", "\\textsf{Yes}",
)
add(
    "text", "\\text{no solution}", "no solution", "\\text{No solution}", "\\text{no solutions}",
    "\\text{There is no solution}", "\\emptyset", "\\text{No real solution}", "No solution.", "\\text{none}",
)
add(
    "text", "\\text{even}", "even", "\\text{Even}", "\\text{odd}", "\\text{even function}", "\\mathrm{even}",
    "Even.", "\\emph{even}",
)
add("text", "\\text{east}", "east", "\\text{East}", "\\text{the east}", "West")
add(
    "text", "\\text{Monday, Tuesday}", "Monday, Tuesday", "\\text{Tuesday, Monday}",
    "\\text{Monday and Tuesday}", "Monday Tuesday",
)
add(
    "text", "\\text{Alice}", "Alice", "alice", "\\text{Alice won}", "Bob", "\\mathrm{Alice}",
    "\\text{Alice.}", "\\textbf{Alice}", "\\text{ALICE}",
)
add(
    "text", "\\text{hexagon}", "hexagon", "\\text{a hexagon}", "\\text{Hexagon}", "\\text{regular hexagon}",
)
add(
    "expr", "(x+1)(x-1)", "x^2-1", "(x-1)(x+1)", "x^{2}-1", "x*x-1", "x²-1", "x^2+1", "(x + 1)(x - 1)",
    "\\left(x+1\\right)\\left(x-1\\right)", "(1+x)(x-1)", "[x+1][x-1]", "(x+1)*(x-1)", "(x+1)\\cdot(x-1)",
    "(x+1)\\times(x-1)", "-(1-x)(1+x)", "y^2-1", "f(x)=x^2-1", "x^2-1=0", "X^2-1", "\\{x^2-1\\}",
)
add("expr", "ab", "ba", "a b", "a*b", "a\\cdot b", "AB", "a+b", "\\text{ab}", "a\\times b")
add(
    "expr", "\\frac{a}{b}", "a/b", "a\\div b", "ab^{-1}", "b/a", "\\frac ab", "a:b", "\\frac{a}b",
    "\\frac{ac}{bc}", "\\frac{2a}{2b}", "a \\over b",
)
add(
    "expr", "\\frac{n!}{k!(n-k)!}", "\\binom{n}{k}", "{n\\choose k}", "C(n,k)", "C_n^k", "{}_nC_k",
    "\\frac{n!}{(n-k)!k!}", "\\dbinom nk",
)
add(
    "expr", "\\binom{10}{3}", "120", "{10\\choose 3}", "C_{10}^{3}", "C(10,3)", "\\binom{10}{7}", "_{10}C_3",
    "\\frac{10!}{3!7!}", "^{10}C_3",
)
add(
    "expr", "n(n+1)/2", "\\frac{n(n+1)}{2}", "\\frac{n^2+n}{2}", "\\frac12n(n+1)", "\\binom{n+1}{2}",
    "\\frac{n(n+1)}2", "\\sum_{k=1}^n k", "0.5n^2+0.5n",
)
add(
    "expr", "\\sin x", "sin x", "sin(x)", "\\sin(x)", "\\sin{x}", "\\cos(\\frac{\\pi}{2}-x)",
    "\\operatorname{sin}x", "\\mathrm{sin}\\,x", "\\sin y", "\\cos x",
)
add(
    "expr", "\\tan^{-1} x", "\\arctan x", "\\arctan(x)", "\\operatorname{arctan}x", "tan^{-1}(x)",
    "\\frac{1}{\\tan x}", "\\text{arctan}(x)", "\\mathrm{arctan}\\,x", "\\operatorname{arctg}x",
)
add(
    "expr", "\\frac{1}{2}\\ln|x|+C", "\\frac{\\ln|x|}{2}+C", "0.5\\ln|x|+C", "\\frac12\\ln |x| + c",
    "\\frac12\\ln|x|", "\\ln\\sqrt{|x|}+C", "\\frac12 \\log|x|+C",
)
add("expr", "a_{n+1}=2a_n", "2a_n", "a_{n+1}=2 a_{n}", "a_n=2a_{n-1}", "2a_{n}=a_{n+1}")
add(
    "expr", "\\vec{a}+\\vec{b}", "\\mathbf{a}+\\mathbf{b}", "\\overrightarrow{a}+\\overrightarrow{b}", "a+b",
    "\\vec a+\\vec b", "\\boldsymbol{a}+\\boldsymbol{b}",
)
add("expr", "x_1+x_2", "x_2+x_1", "x_{1}+x_{2}", "x1+x2", "x_1 + x_2", "x_1+x_3")
add(
    "expr", "|x|", "\\left|x\\right|", "\\lvert x\\rvert", "\\vert x\\vert", "abs(x)", "\\sqrt{x^2}", "x",
    "\\|x\\|", "\\mid x\\mid",
)
add(
    "expr", "\\lfloor x\\rfloor", "\\left\\lfloor x\\right\\rfloor", "floor(x)", "[x]", "x",
    "\\lceil x\\rceil",
)
add(
    "complex", "1+2i", "2i+1", "1 + 2i", "1+2\\mathrm{i}", "1+2\\text{i}", "1+2\\cdot i", "1+i2", "1-2i",
    "1+2j", "(1,2)", "1+2 i", "1+2\\imath", "\\sqrt{-4}+1",
)
add(
    "complex", "e^{i\\pi/3}", "\\frac12+\\frac{\\sqrt3}{2}i", "\\cos\\frac{\\pi}{3}+i\\sin\\frac{\\pi}{3}",
    "e^{\\frac{\\pi i}{3}}", "e^{\\frac{i\\pi}{3}}", "\\operatorname{cis}\\frac{\\pi}{3}", "e^{-i\\pi/3}",
)
add(
    "infinity", "\\infty", "∞", "+\\infty", "infinity", "inf", "\\text{infinity}", "-\\infty",
    "\\text{Infinity}", "oo", "\\text{diverges}", "\\text{DNE}",
)
add(
    "base", "101_2", "101_{2}", "101_\\text{two}", "5", "101_{\\text{two}}", "101", "101_{10}", "102_2",
    "101_3",
)
add(
    "ratio", "2:3", "2/3", "\\frac23", "4:6", "2 : 3", "2\\colon3", "2 to 3", "2\\text{ to }3", "3:2",
    "2\\text{:}3",
)
add("ratio", "1:2:3", "1:2:3", "2:4:6", "3:2:1", "1 : 2 : 3")
add(
    "time", "3:30", "3:30\\text{ p.m.}", "3:30", "330", "3.5", "3:45", "3\\text{:}30", "03:30", "15:30",
)
add("date", "\\text{June 5}", "June 5", "\\text{5 June}", "\\text{June 6}", "\\text{June 5th}")
add(
    "decimal", "3.14", "3.140", "3.14159", "3,14", "3.1400000", "3.15", "22/7", "\\pi", "3.14\\text{ m}",
    "+3.14", "3.1", "314/100",
)
add(
    "decimal", "2.5", "2\\frac12", "5/2", "2,5", "2.50", "2.500000001", "2.5000001", "2.500001", "2.49999",
    "2.4999999",
)
add("decimal", "0.1", "1/10", "10\\%", ".1", "0.10", "1e-1", "\\frac1{10}", "0.09999999", "1.0e-1")
add("decimal", "1.414", "\\sqrt2", "1.4142", "1.41421356")
add("decimal", "\\sqrt{2}", "1.414", "1.41421", "1.414214", "1.4142135", "1.41421356237")
add("decimal", "0.667", "2/3", "0.6667", "0.666667")
add("decimal", "12.3456789", "12.34567", "12.345679", "12.3456790", "12.345678")
add("big", "2^{2024}-1", "2^{2024} - 1", "4^{1012}-1", "-1+2^{2024}", "2^{2024}")
add(
    "big", "10^{100}",
    "10000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000",
    "10^{99}\\cdot10", "10^{101}", "100^{50}",
)
add("big", "100!", "100!", "100\\cdot 99!", "99!")
add("double", "\\frac{1}{2}", "\\frac{1}{2}\\frac{1}{2}")
add(
    "nested", "\\frac{\\frac{1}{2}}{\\frac{3}{4}}", "\\frac23", "2/3", "\\frac{2}{3}", "\\frac{4}{6}",
    "\\frac{1/2}{3/4}", "\\frac38",
)
add("nested", "\\frac{1}{1+\\frac{1}{2}}", "\\frac23", "2/3", "0.666667", "\\frac{1}{\\frac32}")
add("sumprod", "\\sum_{i=1}^{3}i", "6", "1+2+3")
add(
    "sumprod", "2\\cdot3\\cdot5", "30", "2\\times3\\times5", "2*3*5", "2 \\cdot 3 \\cdot 5",
    "5\\cdot3\\cdot2", "235",
)
add(
    "sumprod", "2^3\\cdot3^2", "72", "8\\cdot9", "2^3*3^2", "3^2\\cdot2^3", "2^3 \\times 3^2", "2^{3}3^{2}",
)
add("mod", "3\\pmod 7", "3", "3\\mod7", "10\\pmod 7", "3\\ (\\mathrm{mod}\\ 7)", "3 \\bmod 7")
add("mod", "x\\equiv 3\\pmod 7", "3", "x\\equiv3 \\pmod{7}", "3\\pmod7", "x=3", "x = 7k+3")


def verdict(truth, answer):
    return bool(verify(parse(f"\\boxed{{{truth}}}"), parse(f"\\boxed{{{answer}}}")))


rows = [json.dumps({"kind": k, "truth": t, "answer": a, "equal": verdict(t, a)}) for k, t, a in pairs]
with open("notations.json", "w") as file:
    file.write('{"source": "math-verify 0.9.0", "pairs": [\n' + ",\n".join(rows) + "\n]}\n")
print(len(rows), "pairs,", sum('"equal": true' in row for row in rows), "equal")
