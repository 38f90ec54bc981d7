/// Gives back what a service reserved in `poll_ready` when it will not be called after all, so that
/// a refused call keeps no place in a concurrency limit below.
pub(crate) fn release<S: Clone>(service: &mut S) {
    *service = service.clone();
}

/// Takes the service that was made ready, which is the one to call, and leaves its clone.
#[cfg(feature = "server")]
pub(crate) fn take_ready<S: Clone>(service: &mut S) -> S {
    let spare = service.clone();
    std::mem::replace(service, spare)
}
