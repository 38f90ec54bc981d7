use prost::Message;
use prost_types::{FileDescriptorSet, MethodOptions, method_options::IdempotencyLevel};

use super::PolicyBuilder;
use crate::error::ConfigError;

impl PolicyBuilder {
    /// Declares the methods of a `FileDescriptorSet` by what their `.proto` files say: those with an
    /// `idempotency_level` of `NO_SIDE_EFFECTS` or `IDEMPOTENT` as
    /// [idempotent](Self::idempotent_methods), and those without streams as
    /// [unary](Self::unary_methods).
    ///
    /// `protoc --descriptor_set_out`, and `file_descriptor_set_path` of tonic-prost-build, write such a
    /// set.
    ///
    /// # Errors
    ///
    /// If the bytes are no descriptor set.
    pub fn descriptor_set(self, bytes: &[u8]) -> Result<Self, ConfigError> {
        let set = FileDescriptorSet::decode(bytes).map_err(|error| {
            let allowed = "an encoded google.protobuf.FileDescriptorSet";
            ConfigError::new(None, "descriptor_set", error, allowed)
        })?;
        let (mut idempotent, mut unary) = (Vec::new(), Vec::new());
        for file in &set.file {
            for service in &file.service {
                let package = file.package().trim_start_matches('.');
                let dot = if package.is_empty() { "" } else { "." };
                for method in &service.method {
                    let name = format!("{package}{dot}{}/{}", service.name(), method.name());
                    let options = method.options.as_ref();
                    let level = options.map(MethodOptions::idempotency_level);
                    if !method.client_streaming() && !method.server_streaming() {
                        unary.push(name.clone());
                    }
                    if matches!(
                        level,
                        Some(IdempotencyLevel::NoSideEffects | IdempotencyLevel::Idempotent)
                    ) {
                        idempotent.push(name);
                    }
                }
            }
        }
        Ok(self.idempotent_methods(idempotent).unary_methods(unary))
    }
}
