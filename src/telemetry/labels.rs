/// The ids that tie a retry to its request in the logs.
#[derive(Debug, Default, Clone, Copy)]
#[cfg_attr(not(feature = "tracing"), allow(dead_code))]
pub struct Labels<'a> {
    pub(crate) correlation_id: Option<&'a str>,
    pub(crate) idempotency_key: Option<&'a str>,
}
