//! The operators' commands, for the terminal and for scripts.

pub(crate) mod erase;
pub(crate) mod keys;
pub(crate) mod letters;
pub(crate) mod maintenance;
pub(crate) mod replays;

/// A path with a query of the values that there are.
fn path(path: &str, query: &[(&str, Option<String>)]) -> String {
    let mut path = path.to_owned();
    let mut separator = '?';
    for (name, value) in query {
        if let Some(value) = value {
            path.extend([separator]);
            path += &format!("{name}={}", encoded(value));
            separator = '&';
        }
    }
    path
}

/// A value as a part of a URL.
fn encoded(value: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let encode = |byte: u8| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    value.bytes().map(encode).collect()
}
