//! Rule of tuples: parameters and fields have names, because a tuple in a signature or a struct does not say
//! which part is which.

use rlt_rules::rust_sources;

/// Tuples that are allowed everywhere, because their parts belong together.
const PAIRS: [&str; 2] = [
    // Dtype and device, as libtorch takes them.
    "(Kind, Device)",
    // A tensor with its name, as decoders and checkpoints list them.
    "(String, Tensor)",
];

/// Functions and fields with another tuple, by file. The list only gets shorter.
const ALLOWED: [(&str, &[&str]); 4] = [
    // Numbers of query and of key heads.
    ("crds/src/degrees.rs", &["divides_heads", "legal_degrees", "tp_divides_layers", "tp_divides_weights"]),
    // AdamW's two betas, and the two parts of a version.
    ("trainer/src/roles/optim/adamw.rs", &["betas"]),
    ("trainer/torch/src/optim.rs", &["betas"]),
    ("trainer/torch/src/cuda/runtime/detect.rs", &["compute_capability"]),
];

#[test]
fn parameters_and_fields_are_named_one_by_one() {
    let mut found = Vec::new();
    for file in rust_sources().unwrap() {
        let Some(code) = file.production_code() else { continue };
        let code = without_comments(code);
        let allowed =
            |name: &str| ALLOWED.iter().any(|(path, names)| *path == file.path && names.contains(&name));
        for (name, tuple) in tuple_parameters(&code).into_iter().chain(tuple_fields(&code)) {
            if !PAIRS.contains(&tuple.as_str()) && !allowed(&name) {
                found.push(format!("{}: {name} has the tuple {tuple}", file.path));
            }
        }
    }
    assert!(found.is_empty(), "expected parameters and fields with names:\n{}", found.join("\n"));
}

#[test]
fn tuples_are_found_in_signatures_and_structs() {
    let code = "
        pub fn one<T: Fn(u8) -> u8>(&self, (a, b): (u8, &[u8]), c: &'a mut (u8, Vec<(u8, u8)>), d: ()) {}
        fn two(f: impl Fn((u8, u8)) -> u8, [x, y]: [u8; 2], Point { z, .. }: Point) {}
        fn three((a, b): Alias, error: &(dyn Error + 'static), (): ()) {}
        struct Four<T> { #[serde(rename = \"a:b\")] pub(in crate::x) pair: (u8, T), list: Vec<(u8, u8)> }
        struct Five(u8, u8);
    ";
    let owned = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(name, tuple)| ((*name).to_owned(), (*tuple).to_owned())).collect()
    };
    let parameters = [("one", "(u8, &[u8])"), ("one", "(u8, Vec<(u8, u8)>)"), ("three", "Alias")];
    assert_eq!(tuple_parameters(code), owned(&parameters));
    assert_eq!(tuple_fields(code), owned(&[("pair", "(u8, T)")]));
}

fn without_comments(code: &str) -> String {
    code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Returns the functions with tuples among their parameters, and these tuples.
fn tuple_parameters(code: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (name, rest) in items(code, "fn ") {
        let Some((parameters, _)) = bracketed(behind_generics(rest), '(') else { continue };
        let tuples = split_at_commas(parameters).into_iter().filter_map(tuple_of);
        found.extend(tuples.map(|tuple| (name.to_owned(), tuple)));
    }
    found
}

/// Returns the named fields of structs that are tuples, and these tuples.
fn tuple_fields(code: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (_, rest) in items(code, "struct ") {
        let body = rest.find(['{', ';', '(']).map_or("", |start| &rest[start..]);
        let Some((fields, _)) = bracketed(body, '{') else { continue };
        for field in split_at_commas(fields) {
            let mut field = field.trim();
            while let Some((_, behind)) = field.strip_prefix('#').and_then(|rest| bracketed(rest, '[')) {
                field = behind.trim();
            }
            let field = field.strip_prefix("pub").map_or(field, str::trim);
            let field = bracketed(field, '(').map_or(field, |(_, behind)| behind.trim());
            let Some((name, kind)) = field.split_once(':') else { continue };
            found.extend(tuple_type(kind).map(|tuple| (name.to_owned(), tuple)));
        }
    }
    found
}

/// Returns the names after `keyword`, each with the code that follows it.
fn items<'a>(code: &'a str, keyword: &str) -> Vec<(&'a str, &'a str)> {
    let is_of_name = |c: char| c.is_alphanumeric() || c == '_';
    let items = code.match_indices(keyword).filter_map(|(at, _)| {
        let behind = &code[at + keyword.len()..];
        let end = behind.find(|c: char| !is_of_name(c)).unwrap_or(behind.len());
        let is_item = end > 0 && !code[..at].ends_with(is_of_name);
        is_item.then(|| behind.split_at(end))
    });
    items.collect()
}

fn behind_generics(rest: &str) -> &str {
    bracketed(rest, '<').map_or(rest, |(_, behind)| behind)
}

/// Returns the tuple of a parameter: its type, or if its pattern destructures a tuple, the type of any name.
fn tuple_of(parameter: &str) -> Option<String> {
    let parameter = parameter.trim();
    match bracketed(parameter, '(') {
        Some(("", _)) => None,
        Some((_, kind)) => Some(in_one_line(kind.trim_start().trim_start_matches(':'))),
        None => tuple_type(parameter.split_once(':')?.1),
    }
}

/// Returns a type with two or more parts, without references in front of it.
fn tuple_type(kind: &str) -> Option<String> {
    let mut kind = kind.trim();
    while let Some(behind) = kind.strip_prefix('&') {
        let behind = behind.trim_start();
        let is_named = behind.starts_with('\'');
        let behind = if is_named { behind.split_once(' ').map_or("", |(_, rest)| rest) } else { behind };
        kind = behind.strip_prefix("mut ").unwrap_or(behind);
    }
    let (parts, _) = bracketed(kind, '(')?;
    (split_at_commas(parts).len() > 1).then(|| in_one_line(kind))
}

fn in_one_line(kind: &str) -> String {
    kind.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Splits `text` into the content of the bracket `open` at its start, and the text after the bracket.
fn bracketed(text: &str, open: char) -> Option<(&str, &str)> {
    if !text.starts_with(open) {
        return None;
    }
    let (mut depth, mut before) = (0, ' ');
    for (idx, c) in text.char_indices() {
        depth += depth_of(c, before);
        if depth == 0 {
            return Some((&text[1..idx], &text[idx + 1..]));
        }
        before = c;
    }
    None
}

/// Splits `text` at the commas outside of brackets.
fn split_at_commas(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut before) = (0, 0, ' ');
    let mut parts = Vec::new();
    for (idx, c) in text.char_indices() {
        depth += depth_of(c, before);
        if c == ',' && depth == 0 {
            parts.push(&text[start..idx]);
            start = idx + 1;
        }
        before = c;
    }
    parts.push(&text[start..]);
    parts
}

/// Returns by how much a character changes the depth of brackets. The `>` of an arrow does not change it.
fn depth_of(c: char, before: char) -> i32 {
    match c {
        '(' | '[' | '{' | '<' => 1,
        ')' | ']' | '}' => -1,
        '>' if before != '-' => -1,
        _ => 0,
    }
}
