//! A policy file as a gate of one's own CI: exits with 1 if it breaks a rule.

use tower_reprise::Policy;

const FILE: &str = r#"
profile = "synchronous"
service = "checkout"
max_retries = 2
total_timeout = "10s"
"#;

fn main() {
    let policy = Policy::from_toml(FILE).unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(2);
    });
    let audit = policy.audit();
    for finding in audit.findings() {
        println!("{finding}");
    }
    let wrong = Policy::from_toml(&FILE.replace("= 2", "= 9")).unwrap_err();
    println!("{wrong}");
    assert!(
        wrong.to_string().starts_with("R-2: max_retries is 9"),
        "{wrong}"
    );
    std::process::exit(i32::from(!audit.is_compliant()));
}
