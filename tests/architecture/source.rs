//! The files of a crate, and the paths in them.

use std::{fs, path::Path};

/// A source file: its module, its name, and its code without comments and strings.
pub(crate) struct File {
    pub(crate) module: Vec<String>,
    pub(crate) name: String,
    code: String,
}

impl File {
    pub(crate) fn of_text(module: &str, text: &str) -> Self {
        Self {
            module: module.split("::").map(str::to_owned).collect(),
            name: format!("src/{}", module.replace("::", "/")),
            code: code_of(text),
        }
    }
}

/// All files below `root`, but for its `lib.rs` and programs.
pub(crate) fn files(root: &Path) -> Vec<File> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let inside = path
                .strip_prefix(root)
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned();
            if path.is_dir() && inside != "bin" {
                folders.push(path);
            } else if let Some(stem) = inside.strip_suffix(".rs").filter(|stem| *stem != "lib") {
                let module = stem.strip_suffix("/mod").unwrap_or(stem);
                found.push(File {
                    module: module.split('/').map(str::to_owned).collect(),
                    name: format!("src/{inside}"),
                    code: code_of(&fs::read_to_string(path).unwrap()),
                });
            }
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// Blanks out comments, strings and characters.
fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if next == '"' {
            string(rest)
        } else if rest.starts_with("r\"") || rest.starts_with("r#") {
            raw_string(rest)
        } else if rest.starts_with("'\"'") || rest.starts_with("'\\") {
            3 + rest[3..]
                .find('\'')
                .filter(|_| rest.starts_with("'\\"))
                .unwrap_or(0)
        } else {
            code.push(next);
            rest = &rest[next.len_utf8()..];
            continue;
        };
        code.push(' ');
        rest = &rest[skipped..];
    }
    code
}

fn string(text: &str) -> usize {
    let mut escaped = false;
    let end = text[1..].find(|next| {
        let ends = next == '"' && !escaped;
        escaped = next == '\\' && !escaped;
        ends
    });
    end.map_or(text.len(), |end| end + 2)
}

/// A raw string, or the `r` of a raw identifier.
fn raw_string(text: &str) -> usize {
    let hashes = text[1..].bytes().take_while(|byte| *byte == b'#').count();
    if text.as_bytes().get(1 + hashes) != Some(&b'"') {
        return 1;
    }
    let close = format!("\"{}", "#".repeat(hashes));
    let start = hashes + 2;
    text[start..]
        .find(&close)
        .map_or(text.len(), |end| start + end + close.len())
}

/// The absolute paths inside the crate that a file names.
pub(crate) fn paths(file: &File) -> Vec<Vec<String>> {
    let tokens = tokens(&file.code);
    let mut found = Vec::new();
    // Modules inside the file, each with the depth of its braces.
    let mut inner: Vec<(String, usize)> = Vec::new();
    let mut depth = 0;
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        let starts_path = at == 0 || tokens[at - 1] != "::";
        match token.as_str() {
            "{" => depth += 1,
            "}" => {
                depth -= 1;
                inner.retain(|(_, outside)| *outside < depth);
            }
            "mod" if tokens.get(at + 2).is_some_and(|token| token == "{") => {
                inner.push((tokens[at + 1].clone(), depth));
            }
            "crate" | "super" if starts_path => {
                let mut base = file.module.clone();
                base.extend(inner.iter().map(|(name, _)| name.clone()));
                at = tree(&tokens, at, &base, &[], &mut found);
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    found
}

fn tokens(code: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let mut chars = code.chars().peekable();
    while let Some(next) = chars.next() {
        if next.is_alphanumeric() || next == '_' {
            let mut word = String::from(next);
            while let Some(more) = chars.next_if(|c| c.is_alphanumeric() || *c == '_') {
                word.push(more);
            }
            tokens.push(word);
        } else if next == ':' && chars.next_if_eq(&':').is_some() {
            tokens.push("::".to_owned());
        } else if !next.is_whitespace() {
            tokens.push(next.to_string());
        }
    }
    tokens
}

/// Reads a path or a tree of them, and returns where it ends.
fn tree(
    tokens: &[String],
    mut at: usize,
    base: &[String],
    prefix: &[String],
    found: &mut Vec<Vec<String>>,
) -> usize {
    let mut path = prefix.to_vec();
    loop {
        match tokens.get(at).map(String::as_str) {
            Some("{") => {
                at += 1;
                while tokens.get(at).is_some_and(|token| token != "}") {
                    at = tree(tokens, at, base, &path, found);
                    at += usize::from(tokens.get(at).is_some_and(|token| token == ","));
                }
                return at + 1;
            }
            Some("super") => {
                let from = if path.is_empty() { base } else { &path };
                path = from[..from.len().saturating_sub(1)].to_vec();
            }
            Some("crate" | "self") | None => {}
            Some(name) => path.push(name.to_owned()),
        }
        at += 1;
        if tokens.get(at).is_none_or(|token| token != "::") {
            break;
        }
        at += 1;
        // Generic arguments are no part of a path.
        if tokens.get(at).is_some_and(|token| token == "<") {
            break;
        }
    }
    if tokens.get(at).is_some_and(|token| token == "as") {
        at += 2;
    }
    found.push(path);
    at
}
