//! The rules of the guide and the tests that carry their ids.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// The ids of the guide's page, as `**RA-3**`.
fn rules() -> BTreeSet<String> {
    let page = fs::read_to_string(root().join("src/guide/rules.md")).unwrap();
    let bold = page.split("**").skip(1).step_by(2);
    bold.filter(|text| id(text).as_deref() == Some(*text)).map(str::to_owned).collect()
}

/// The id at the start of a text, as `RA-3` or as `ra_3_`.
fn id(text: &str) -> Option<String> {
    let letters = text.bytes().take_while(u8::is_ascii_alphabetic).count();
    let rest = text.get(letters..)?.strip_prefix(['-', '_'])?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    ((1..=2).contains(&letters) && (1..=2).contains(&digits))
        .then(|| format!("{}-{}", text[..letters].to_ascii_uppercase(), &rest[..digits]))
}

/// The ids in names of tests and in comments on them.
fn proven() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![root().join("src"), root().join("tests")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let names = text.lines().filter_map(|line| {
                    line.trim_start().trim_start_matches("async ").strip_prefix("fn ")
                });
                found.extend(names.filter_map(id));
                let comments = text.lines().filter(|line| line.trim_start().starts_with("//"));
                let words = comments.flat_map(|line| line.split([' ', ',', '(', ')', ':', '.', ';', '`']));
                found.extend(words.filter(|word| word.contains('-')).filter_map(id));
            }
        }
    }
    found
}

#[test]
fn every_rule_is_carried_by_a_test() {
    let proven = proven();
    let missing: Vec<_> = rules().into_iter().filter(|rule| !proven.contains(rule)).collect();
    assert_eq!(missing, Vec::<String>::new());
}

/// An id that a test carries can be looked up.
#[test]
fn every_id_in_the_name_of_a_test_is_a_rule() {
    let (rules, mut unknown) = (rules(), BTreeSet::new());
    let families: BTreeSet<_> = rules.iter().filter_map(|rule| rule.split('-').next()).collect();
    for id in proven() {
        let family = id.split('-').next().unwrap_or_default();
        if families.contains(family) && !rules.contains(&id) {
            unknown.insert(id);
        }
    }
    assert_eq!(unknown, BTreeSet::new());
}
