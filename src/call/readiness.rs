/// Gives back what a service reserved in `poll_ready` when it will not be called after all, so that
/// a refused call keeps no place in a concurrency limit below.
pub(crate) fn release<S: Clone>(service: &mut S) {
    *service = service.clone();
}
