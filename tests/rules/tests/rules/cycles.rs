//! Rule of imports: files of a package import each other in one direction, apart from small groups. The files
//! of a cycle can only be read, moved and tested together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use regex::{Captures, Regex};
use rlt_rules::{SourceFile, rust_sources};

/// Maximum number of files in an import cycle.
const MAX_CYCLE_FILES: usize = 3;

/// Maximum number of re-exports that are followed, so that cyclic re-exports end.
const MAX_STEPS: usize = 12;

#[test]
fn files_import_each_other_in_small_cycles_at_most() {
    let files = rust_sources().unwrap();
    let mut wrong = Vec::new();
    for folder in source_folders(&files) {
        for cycle in Package::read(&folder, &files).cycles() {
            wrong.push(format!("{folder}: {}", cycle.join(", ")));
        }
    }
    assert!(
        wrong.is_empty(),
        "import cycles of more than {MAX_CYCLE_FILES} files; move shared types to a file of their own:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn a_cycle_is_found_through_reexports_nested_imports_and_inline_paths() {
    let texts = [
        ("lib", "mod a;\npub use a::first;\n// crate::d::fourth\n"),
        (
            "a",
            "mod b;\nmod types;\npub use types::Shared;\nuse b::Second;\npub fn first(_: Second, _: Shared) {}\n",
        ),
        (
            "a/b",
            "use crate::{c::{self, Third}, d};\npub struct Second(Third);\nfn x() { d::fourth(); c::y() }\n",
        ),
        (
            "a/types",
            "pub struct Shared;\nstruct Own;\nmod own {\n    use super::Own;\n}\n#[cfg(test)]\nuse crate::c::Third;\n",
        ),
        ("c", "pub struct Third;\npub fn y() { let text = \"crate::e::fifth\"; }\n"),
        ("d", "use super::a::Shared;\nmod e;\npub fn fourth(_: Shared) { self::e::fifth() }\n"),
        ("d/e", "pub fn fifth() { crate::first(super::super::a::b::Second) }\n"),
    ];
    let file = |(name, text): &(&str, &str)| SourceFile {
        path: format!("p/src/{name}.rs"),
        text: (*text).to_owned(),
    };
    let mut files: Vec<SourceFile> = texts.iter().map(file).collect();
    let found = Package::read("p/src", &files).cycles();
    assert_eq!(found, [["p/src/a.rs", "p/src/a/b.rs", "p/src/d.rs", "p/src/d/e.rs"]]);

    files[6].text = "pub fn fifth() {}\n".to_owned();
    let found = Package::read("p/src", &files).cycles();
    assert!(found.is_empty(), "expected no cycle, got {found:?}");
}

#[test]
fn a_function_that_has_the_name_of_its_module_counts_as_an_import() {
    let texts = [
        ("lib", "mod a;\nmod b;\nmod c;\nmod d;\n"),
        ("a", "mod run;\npub use run::run;\n"),
        ("a/run", "use crate::b::Second;\npub fn run(_: Second) {}\n"),
        ("b", "use crate::c::Third;\npub struct Second(Third);\n"),
        ("c", "use crate::d::Fourth;\npub struct Third(Fourth);\n"),
        ("d", "use crate::a;\npub struct Fourth;\nfn x(second: Second) { a::run(second) }\n"),
    ];
    let file = |(name, text): &(&str, &str)| SourceFile {
        path: format!("p/src/{name}.rs"),
        text: (*text).to_owned(),
    };
    let mut files: Vec<SourceFile> = texts.iter().map(file).collect();
    let found = Package::read("p/src", &files).cycles();
    assert_eq!(found, [["p/src/a/run.rs", "p/src/b.rs", "p/src/c.rs", "p/src/d.rs"]]);

    files[5].text = "use crate::a;\npub struct Fourth;\n".to_owned();
    let found = Package::read("p/src", &files).cycles();
    assert!(found.is_empty(), "expected no cycle, got {found:?}");
}

/// Returns the folders with the root module of a package, outside of tests.
fn source_folders(files: &[SourceFile]) -> BTreeSet<String> {
    let folder = |file: &SourceFile| {
        let roots = ["/lib.rs", "/main.rs"].into_iter();
        roots
            .filter_map(|root| file.path.strip_suffix(root))
            .find(|path| path.ends_with("/src"))
            .map(str::to_owned)
    };
    files.iter().filter(|file| !file.path.starts_with("tests/")).filter_map(folder).collect()
}

/// Path of a module from the root of its package; empty for the root.
type ModulePath = Vec<String>;

/// Modules of one package, one for each file.
struct Package {
    modules: BTreeMap<ModulePath, Module>,
}

/// Definitions and imports of one file.
struct Module {
    file: String,
    /// Code of the file without its imports.
    code: String,
    /// Names of the items that the file defines.
    defined: BTreeSet<String>,
    /// Imports, by the name under which the file knows them.
    imports: BTreeMap<String, Import>,
    /// Modules from which all items are imported (`use module::*`).
    globs: Vec<Import>,
}

struct Import {
    path: ModulePath,
    /// Whether other modules can use the imported name.
    is_reexport: bool,
}

/// The item to which a path resolves.
enum Target {
    Module(ModulePath),
    /// An item, given by the module that defines it.
    Item(ModulePath),
}

impl Package {
    fn read(folder: &str, files: &[SourceFile]) -> Self {
        let has_library = files.iter().any(|file| file.path == format!("{folder}/lib.rs"));
        let mut modules = BTreeMap::new();
        for file in files {
            let name = file.path.strip_prefix(folder).and_then(|name| name.strip_prefix('/'));
            let Some(name) = name.map(|name| name.trim_end_matches(".rs")) else { continue };
            let Some(code) = file.production_code() else { continue };
            let path = match name {
                "main" if has_library => continue,
                "lib" | "main" => Vec::new(),
                _ => name.split('/').map(str::to_owned).collect(),
            };
            modules.insert(path, Module::read(&file.path, code));
        }
        Self { modules }
    }

    /// Returns the groups of files that import each other in a cycle, the largest first.
    fn cycles(&self) -> Vec<Vec<String>> {
        let paths: Vec<&ModulePath> = self.modules.keys().collect();
        let index: BTreeMap<&ModulePath, usize> =
            paths.iter().enumerate().map(|(at, path)| (*path, at)).collect();
        let imports_of = |path: &ModulePath| -> Vec<usize> {
            self.imported_by(path).iter().filter_map(|imported| index.get(imported).copied()).collect()
        };
        let imports: Vec<Vec<usize>> = paths.iter().map(|path| imports_of(path)).collect();
        let reached: Vec<Vec<bool>> = (0..paths.len()).map(|start| reachable(start, &imports)).collect();
        let mut cycles = Vec::new();
        for first in (0..paths.len()).filter(|at| reached[*at][*at]) {
            let is_member = |other: &usize| reached[first][*other] && reached[*other][first];
            let members: Vec<usize> = (0..paths.len()).filter(is_member).collect();
            if members.len() > MAX_CYCLE_FILES && members[0] == first {
                let files = members.iter().map(|member| self.modules[paths[*member]].file.clone());
                cycles.push(files.collect::<Vec<_>>());
            }
        }
        cycles.sort_by_key(|files| std::cmp::Reverse(files.len()));
        cycles
    }

    /// Returns the other modules whose items the code of `path` uses. An import that is only re-exported does
    /// not count.
    fn imported_by(&self, path: &ModulePath) -> BTreeSet<ModulePath> {
        let module = &self.modules[path];
        let words: BTreeSet<&str> = WORD.find_iter(&module.code).map(|word| word.as_str()).collect();
        let is_used = |name: &str, import: &Import| !import.is_reexport || words.contains(name);
        let named = module.imports.iter().filter(|(name, import)| is_used(name, import));
        let mut found: BTreeSet<ModulePath> =
            named.filter_map(|(_, import)| self.item(path, &import.path)).collect();
        for glob in module.globs.iter().filter(|glob| !glob.is_reexport) {
            found.extend(self.resolve(path, &glob.path, 0).map(|(Target::Module(at) | Target::Item(at))| at));
        }
        found.extend(inline_paths(&module.code).iter().filter_map(|inline| self.item(path, inline)));
        found.remove(path);
        found
    }

    fn item(&self, from: &ModulePath, path: &[String]) -> Option<ModulePath> {
        match self.resolve(from, path, 0)? {
            Target::Item(module) => Some(module),
            Target::Module(module) => self.namesake(&module),
        }
    }

    /// Returns the module of an item that the parent of `module` exports under the module's name. For example
    /// `format::percent` is a module, and also the function in it that `format` re-exports.
    fn namesake(&self, module: &ModulePath) -> Option<ModulePath> {
        let (name, parent) = module.split_last()?;
        let parent = parent.to_vec();
        let of_parent = self.modules.get(&parent)?;
        if of_parent.defined.contains(name) {
            return Some(parent);
        }
        let import = of_parent.imports.get(name).filter(|import| import.path != [name.as_str()])?;
        match self.resolve(&parent, &import.path, 1)? {
            Target::Item(at) => Some(at),
            Target::Module(_) => None,
        }
    }

    fn resolve(&self, from: &ModulePath, path: &[String], steps: usize) -> Option<Target> {
        let first = path.first().filter(|_| steps < MAX_STEPS)?;
        let (mut at, skipped) = match first.as_str() {
            "crate" => (Vec::new(), 1),
            "self" => (from.clone(), 1),
            "super" => {
                let levels = path.iter().take_while(|name| *name == "super").count();
                (from[..from.len().checked_sub(levels)?].to_vec(), levels)
            }
            name if self.is_child(from, name) || self.modules[from].imports.contains_key(name) => {
                (from.clone(), 0)
            }
            _ => return None,
        };
        for name in &path[skipped..] {
            match self.step(&at, name, steps)? {
                Target::Module(module) => at = module,
                item @ Target::Item(_) => return Some(item),
            }
        }
        Some(Target::Module(at))
    }

    /// Resolves `name` in the module `at`.
    fn step(&self, at: &ModulePath, name: &str, steps: usize) -> Option<Target> {
        if self.is_child(at, name) {
            return Some(Target::Module([at.as_slice(), &[name.to_owned()]].concat()));
        }
        let module = self.modules.get(at)?;
        let is_defined = module.defined.contains(name);
        if let Some(import) = module.imports.get(name).filter(|import| import.path != [name]) {
            let here = || is_defined.then(|| Target::Item(at.clone()));
            return self.resolve(at, &import.path, steps + 1).or_else(here);
        }
        if is_defined {
            return Some(Target::Item(at.clone()));
        }
        let through = module.globs.iter().find_map(|glob| {
            let path = [glob.path.as_slice(), &[name.to_owned()]].concat();
            let target = self.resolve(at, &path, steps + 1)?;
            matches!(&target, Target::Item(of) if self.modules[of].defined.contains(name)).then_some(target)
        });
        Some(through.unwrap_or_else(|| Target::Item(at.clone())))
    }

    fn is_child(&self, module: &ModulePath, name: &str) -> bool {
        self.modules.contains_key([module.as_slice(), &[name.to_owned()]].concat().as_slice())
    }
}

/// Returns for each file whether `start` reaches it in one step or more.
fn reachable(start: usize, imports: &[Vec<usize>]) -> Vec<bool> {
    let mut found = vec![false; imports.len()];
    let mut open = imports[start].clone();
    while let Some(at) = open.pop() {
        if !std::mem::replace(&mut found[at], true) {
            open.extend(&imports[at]);
        }
    }
    found
}

static IMPORT: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?:\b(pub(?:\([^)]*\))?)\s+)?\buse\s+([^;]+);").unwrap());
static DEFINITION: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"\b(?:struct|enum|trait|type|fn|const|static|macro_rules!)\s+(?:mut\s+)?(\w+)").unwrap()
});
static WORD: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\w+").unwrap());
static INLINE_PATH: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\w+(?:::\w+)+").unwrap());
static INLINE_MODULE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?ms)^(?:pub(?:\([^)]*\))? )?mod \w+ \{\n.*?^\}$").unwrap());
/// Comments and literals of texts and characters.
static NO_CODE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r##"(?s)//[^\n]*|/\*.*?\*/|b?r#".*?"#|b?"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])'"##).unwrap()
});

impl Module {
    fn read(file: &str, text: &str) -> Self {
        let code = without_test_items(&NO_CODE.replace_all(text, " "));
        let code = INLINE_MODULE.replace_all(&code, |module: &Captures<'_>| {
            // Paths of an inline module, as the file itself would write them.
            module[0].replace("super::", "self::").replace("self::self::", "super::")
        });
        let mut imports = BTreeMap::new();
        let mut globs = Vec::new();
        for import in IMPORT.captures_iter(&code) {
            for (path, name) in imported_names(&import[2], &[]) {
                let import = Import { path, is_reexport: import.get(1).is_some() };
                if name == "*" {
                    globs.push(import);
                } else {
                    imports.insert(name, import);
                }
            }
        }
        let code = IMPORT.replace_all(&code, " ").into_owned();
        let defined = DEFINITION.captures_iter(&code).map(|name| name[1].to_owned()).collect();
        Self { file: file.to_owned(), code, defined, imports, globs }
    }
}

/// Returns `code` without the items below `#[cfg(test)]`. Each item ends at the indentation at which it
/// begins.
fn without_test_items(code: &str) -> String {
    let mut kept = String::new();
    let mut lines = code.lines();
    while let Some(line) = lines.next() {
        let Some(indent) = line.strip_suffix("#[cfg(test)]") else {
            kept.push_str(line);
            kept.push('\n');
            continue;
        };
        let is_end = |line: &str| {
            let own = line.strip_prefix(indent).is_some_and(|rest| !rest.starts_with(' '));
            own && line.trim_end().ends_with([';', '}', ','])
        };
        lines.by_ref().find(|line| is_end(line));
    }
    kept
}

/// Returns the paths of one `use`, each with the name that it introduces; `*` for all items of the path.
fn imported_names(tree: &str, above: &[String]) -> Vec<(ModulePath, String)> {
    let tree = tree.trim();
    let (head, listed) = match tree.split_once('{') {
        Some((head, rest)) => (head, rest.rsplit_once('}').map(|(listed, _)| listed)),
        None => (tree, None),
    };
    let (head, alias) =
        head.split_once(" as ").map_or((head, None), |(head, alias)| (head, Some(alias.trim())));
    let names = head.split("::").map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned);
    let mut path: ModulePath = above.iter().cloned().chain(names).collect();
    if let Some(listed) = listed {
        return parts_of_list(listed).into_iter().flat_map(|part| imported_names(part, &path)).collect();
    }
    let last = path.pop_if(|name| name == "self" || name == "*").filter(|name| name == "*");
    let name = alias.map(str::to_owned).or(last).or_else(|| path.last().cloned());
    name.map(|name| (path, name)).into_iter().collect()
}

/// Splits a list at the commas outside of braces.
fn parts_of_list(list: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    let separates = |c: char| {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    };
    list.split(separates).filter(|part| !part.trim().is_empty()).collect()
}

/// Returns the paths with at least two names in code.
fn inline_paths(code: &str) -> BTreeSet<ModulePath> {
    let begins = |start: usize| !code[..start].ends_with("::");
    let paths = INLINE_PATH.find_iter(code).filter(|path| begins(path.start()));
    paths.map(|path| path.as_str().split("::").map(str::to_owned).collect()).collect()
}
