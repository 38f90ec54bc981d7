//! The index of examples.

use std::{fs, path::Path};

#[test]
fn the_index_has_every_example() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let index = fs::read_to_string(examples.join("README.md")).unwrap();
    for entry in fs::read_dir(&examples).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let is_example = path.extension().is_some_and(|extension| extension == "rs")
            || path.join("main.rs").exists();
        assert!(
            !is_example || index.contains(&format!("[{name}](")),
            "examples/README.md has no [{name}](…)"
        );
    }
}
