//! Pairs of answers, and the bounds of their comparison.

use serde_json::json;

use super::*;
use crate::reward::sample;

const EQUAL: &[(&str, &str)] = &[
    ("\\frac{1}{2}", "\\dfrac12"),
    ("\\frac{1}{2}", "2/4"),
    ("1/4", "0.25"),
    ("2", "2.0"),
    ("2", "2."),
    ("1000", "1,000"),
    ("1000000", "1{,}000{,}000"),
    ("10000", "10,\\!000"),
    ("5", "$5$"),
    ("5", "5\\text{cm}"),
    ("5", "5\\text{ cm}^2"),
    ("5", "5 cm"),
    ("12.5", "\\$12.50"),
    ("90", "90^\\circ"),
    ("90", "90^{\\circ}"),
    ("50\\%", "50"),
    ("50\\%", "0.5"),
    ("12.5\\%", "12.5"),
    ("-\\frac12", "\\frac{-1}{2}"),
    ("-0.5", "-\\frac{1}{2}"),
    ("3\\frac{1}{2}", "\\frac{7}{2}"),
    ("3 1/2", "3.5"),
    ("\\sqrt 8", "2\\sqrt 2"),
    ("\\frac{\\sqrt{2}}{2}", "\\frac{1}{\\sqrt{2}}"),
    ("\\frac{1}{1+\\sqrt2}", "\\sqrt2-1"),
    ("\\sqrt{3+2\\sqrt2}", "1+\\sqrt2"),
    ("\\sqrt[3]{-8}", "-2"),
    ("\\sqrt[4]{4}", "2^{1/2}"),
    ("2^{10}", "1024"),
    ("5!", "120"),
    ("\\binom{5}{2}", "10"),
    ("1.5\\times 10^3", "1500"),
    ("1/3", "0.333333"),
    ("\\sqrt2", "1.414214"),
    ("-\\frac{1}{3}", "-0.333333"),
    ("x+1", "1+x"),
    ("(x+1)^2", "x^2+2x+1"),
    ("\\frac{x^2-1}{x-1}", "x+1"),
    ("0.75x", "\\frac34x"),
    ("x^10", "x^{10}"),
    ("\\sin^2 x+\\cos^2 x", "1"),
    ("\\log_2 8", "3"),
    ("\\ln 4", "2\\ln 2"),
    ("2+3i", "3i+2"),
    ("i^2", "-1"),
    ("e^{x+1}", "e\\cdot e^x"),
    ("\\{1,2\\}", "\\{2,1\\}"),
    ("1,2", "2, 1"),
    ("1, 2", "1 \\text{ and } 2"),
    ("\\{100,200\\}", "\\{200,100\\}"),
    ("1\\pm\\sqrt2", "1-\\sqrt2,1+\\sqrt2"),
    ("(1,2)", "\\left( 1, \\frac42 \\right)"),
    ("(1,2)", "1,2"),
    ("[0,1)", "\\left[0, 1.0\\right)"),
    ("(-\\infty,2)\\cup(3,\\infty)", "(3,\\infty)\\cup(-\\infty,2)"),
    ("1<x<2", "(1,2)"),
    ("x\\ge 3", "[3,\\infty)"),
    ("\\mathbb{R}", "(-\\infty,\\infty)"),
    ("(-\\infty,\\infty)", "x \\in \\mathbb{R}"),
    ("x \\in [1,2]", "[1,2]"),
    ("x=5", "5"),
    ("5", "x = 5"),
    ("y=2x+1", "2x-y+1=0"),
    ("x\\le 3", "3 \\ge x"),
    ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{bmatrix}1\\\\2.0\\end{bmatrix}"),
    ("\\text{even}", "even"),
    ("\\text{Even}", "even"),
    ("\\text{(A)}", "A"),
    ("\\emptyset", "\\varnothing"),
    ("2^{2009}", "2\\cdot 2^{2008}"),
    ("x^{2009}", "x \\cdot x^{2008}"),
    ("\\{1,1,2\\}", "\\{1,2,2\\}"),
    ("5", "x=5 \\text{ or } x=5"),
    ("\\{1,2,3\\}", "\\{1,2\\}\\cup\\{3\\}"),
    ("1/3", "0.3333333334"),
    ("2.5", "2.499999999"),
    ("5", "4.9999999"),
    ("\\frac{7}{11}", "0.\\overline{63}"),
    ("\\frac{1}{6}", "0.1\\bar{6}"),
    ("2\\frac{1}{3}", "2.\\overline{3}"),
    ("33\\frac{1}{3}\\%", "\\frac{100}{3}\\%"),
    ("1500", "1.5E3"),
    ("1500", "1.5e3"),
    ("0.0015", "1.5e-03"),
    ("1500", "1.5 x 10^3"),
    ("1500", "1.5*10**3"),
    ("3e-8", "-8+3e"),
    ("12", "12 m"),
    ("12", "12 km/h"),
    ("12", "12 m/s^2"),
    ("12", "12\\,\\mathrm{~m/s^2}"),
    ("12", "12 square feet"),
    ("12", "USD 12"),
    ("12", "\\text{Rs. }12"),
    ("12", "12 USD"),
    ("12", "¥12"),
    ("-5", "\\text{-5}"),
    ("\\frac12", "\\mathbf{\\frac{2}{4}}"),
    ("\\frac12", "\\text{$\\frac24$}"),
    ("\\frac12", "{2 \\over 4}"),
    ("\\frac12", "½"),
    ("3\\frac12", "3½"),
    ("2\\sqrt3", "√12"),
    ("2", "∛8"),
    ("x^{12}", "x¹²"),
    ("2\\pi", "2π"),
    ("\\emptyset", "∅"),
    ("0.5", "\\approx 0.50"),
    ("5", "5, "),
    ("5", "5\\\\"),
    ("(x,y)=(1,2)", "(1,2)"),
    ("(1,2)", "(x,y)=(1,2)"),
    ("\\pm 2", "\\mp 2"),
    ("\\binom{n}{2}", "\\frac{n(n-1)}{2}"),
    ("\\binom{n}{k}", "\\frac{n!}{k!(n-k)!}"),
    ("\\arctan x", "\\tan^{-1} x"),
    ("\\left\\lfloor \\frac{n}{2} \\right\\rfloor", "\\lfloor n/2\\rfloor"),
    ("3", "\\lceil 2.5\\rceil"),
    (
        "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}",
        "\\left(\\begin{array}{cc}1&2\\\\[1ex]3&4\\end{array}\\right)",
    ),
    ("B", "b"),
    ("B", "\\textbf{B)}"),
];

const DIFFERENT: &[(&str, &str)] = &[
    ("1", "2"),
    ("1", ""),
    ("1/3", "0.33"),
    ("1/3", "0.3333343"),
    ("0.0000001", "0.0000002"),
    ("0.\\overline{3}", "0.\\overline{7}"),
    ("0.\\overline{3}", "0"),
    ("5", "\\text{-5}"),
    ("\\text{5}", "\\text{-5}"),
    ("\\text{2.5}", "\\text{25}"),
    ("\\mathrm{x+1}", "\\mathrm{x-1}"),
    ("12m", "12 s"),
    ("12 m + 1", "13"),
    ("x", "12x"),
    ("\\lfloor x\\rfloor", "\\lceil x\\rceil"),
    ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{vmatrix}1&2\\\\3&4\\end{vmatrix}"),
    ("\\arctan x", "\\frac{1}{\\tan x}"),
    ("(x,y)=(1,2)", "(2,1)"),
    ("1,1", "1,2"),
    ("10000000000000001", "10000000000000000"),
    ("\\pi", "3.14"),
    ("(1,2)", "(2,1)"),
    ("(1,2)", "[1,2]"),
    ("[0,1)", "[0,1]"),
    ("(1,2)", "2,1"),
    ("\\{1,2\\}", "\\{1,2,3\\}"),
    ("x=5", "y=5"),
    ("x+1", "x-1"),
    ("x<3", "x>3"),
    ("\\mathbb{R}", "(0,\\infty)"),
    ("\\mathbb{R}", "\\mathbb{Z}"),
    ("x<3", "x\\le 3"),
    ("3-4i", "3+4i"),
    ("\\sqrt{x^2}", "x"),
    ("\\sqrt{3}", "\\sqrt{5}"),
    ("30^\\circ", "\\frac{\\pi}{6}"),
    ("\\text{even}", "\\text{odd}"),
    ("2x+1=5", "5"),
    ("\\frac{1}{0}", "\\frac{2}{0}"),
    ("A", "B"),
    ("50\\%", "5"),
    ("2^{2009}", "2^{2010}"),
    ("\\sin x", "\\cos x"),
];

#[test]
fn equal_values_earn_the_reward_and_others_do_not() {
    for (truth, answer) in EQUAL {
        assert!(are_equal(truth, answer), "{truth} and {answer}: {:?} and {:?}", parse(truth), parse(answer));
    }
    for (truth, answer) in DIFFERENT {
        assert!(!are_equal(truth, answer), "{truth} and {answer}");
    }
}

#[test]
fn solutions_are_ground_truths() {
    let score = |text: &str, truth: &str| Math.score(&sample(text, &json!(truth))).unwrap();
    assert_eq!(score("So \\boxed{0.5}.", "Half of it, so $\\boxed{\\frac{1}{2}}$."), 1.0);
    assert_eq!(score("So \\boxed{72}.", "48+24=72\n#### 72"), 1.0);
    assert_eq!(score("\\boxed{1} no, \\boxed{2}", "1"), 0.0);
    assert_eq!(score("1", "1"), 0.0);
}

#[test]
fn listed_boxes_are_one_answer() {
    let score = |text: &str, truth: &str| Math.score(&sample(text, &json!(truth))).unwrap();
    assert_eq!(score("$x=\\boxed{2}$ or $x=\\boxed{1}$.", "1,2"), 1.0);
    assert_eq!(score("\\boxed{5} and \\boxed{5}", "5"), 1.0);
    assert_eq!(score("\\boxed{1} and \\boxed{2}", "2"), 0.0);
    assert_eq!(score("\\boxed{\\{1,2\\}}", "The roots are $\\boxed{1}$ and $\\boxed{2}$."), 1.0);
    assert_eq!(score("\\boxed {5}. Done.", "5"), 1.0);
}

#[test]
fn numbers_and_json_texts_of_lists_are_ground_truths() {
    for truth in [json!(18), json!(18.0), json!("[\"3\", \"18\"]"), json!(["3", 18])] {
        assert_eq!(Math.score(&sample("\\boxed{18}", &truth)).unwrap(), 1.0, "{truth}");
    }
    assert_eq!(Math.score(&sample("\\boxed{[1,2]}", &json!("[1,2]"))).unwrap(), 1.0);
}

#[test]
fn equal_answers_vote_together() {
    let vote = |text: &str| Math.answer(text).unwrap().into_owned();
    assert_eq!(vote("\\boxed{\\frac{1}{2}}"), vote("\\boxed{x = 0.50}"));
    assert_eq!(vote("\\boxed{\\{1,2\\}}"), vote("\\boxed{2,1}"));
    assert_ne!(vote("\\boxed{1}"), vote("\\boxed{2}"));
}

#[test]
fn hostile_answers_end_within_the_bounds() {
    let deep = format!("{}1{}", "(".repeat(900), ")".repeat(900));
    let wide = vec!["1"; 900].join(",");
    let tower = format!("{}9", "9^".repeat(60));
    let products = vec!["(a+b+c+d)"; 60].join("");
    let fractions = "\\frac{1}{x+".repeat(30) + "1" + &"}".repeat(30);
    let bars = "|".repeat(500);
    let hostile = [
        "9^{9^{9^9}}",
        "2^{100000000}",
        "(a+b+c+d)^{40}",
        "10000!",
        "0^{-1}",
        "\\sqrt[1]{2}",
        "1/0",
        "{",
        "}",
        "\\",
        "^",
        "_",
        "\\frac",
        "\\sqrt",
        "\\boxed{",
        "é",
        "\\sqrt[500]{2}",
        "x^{-99999999999}",
        "(-1)^{1/4}",
        "0^0",
        "i^{i}",
        "\\pm",
        "\\begin{pmatrix}",
        "\\end{pmatrix}",
        "1,,2",
        ",",
        "x_",
        "x_{",
        "(1",
        "(1]",
        "\\log_0 0",
        "=",
        "a=",
        "5^{1/99991}",
        &deep,
        &wide,
        &tower,
        &products,
        &fractions,
        &bars,
    ];
    for left in hostile {
        for right in hostile.iter().take(3) {
            are_equal(left, right);
        }
        canonical(left);
    }
}

proptest::proptest! {
    #[test]
    fn any_text_is_compared_without_a_panic(left in "[-0-9a-z\\\\{}()\\[\\],.^_/=<>|!%& ]{0,24}", right in ".{0,12}") {
        are_equal(&left, &right);
        canonical(&left);
    }

    #[test]
    fn a_sum_of_fractions_has_the_value_of_their_exact_sum(a in -99i64..99, b in 1i64..99, c in -99i64..99, d in 1i64..99) {
        let sum = format!("\\frac{{{a}}}{{{b}}}+\\frac{{{c}}}{{{d}}}");
        let (above, below) = (a * d + c * b, b * d);
        let (right, wrong) = (format!("{above}/{below}"), format!("{}/{below}", above + 1));
        proptest::prop_assert!(are_equal(&sum, &right));
        proptest::prop_assert!(!are_equal(&sum, &wrong));
    }
}
