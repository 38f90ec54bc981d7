//! Each file in `cases` is a mistake, and beside it is what the compiler says. That changes with the
//! compiler's version: write it anew with `TRYBUILD=overwrite`, and read it before you keep it.

#[test]
fn the_compiler_says_what_to_do() {
    trybuild::TestCases::new().compile_fail("cases/*.rs");
}
