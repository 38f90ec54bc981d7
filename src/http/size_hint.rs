use http_body::SizeHint;

/// The size of a body of which so many bytes were read, and are to come before the rest.
pub(crate) fn size_after(read: u64, rest: SizeHint) -> SizeHint {
    let mut hint = SizeHint::new();
    hint.set_lower(rest.lower().saturating_add(read));
    if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(read)) {
        hint.set_upper(upper);
    }
    hint
}
