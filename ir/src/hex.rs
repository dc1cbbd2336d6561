//! Hexadecimal digits of digests and secrets.

/// Returns two digits for each byte.
///
/// ```
/// assert_eq!(graphc_ir::hex::encode_hex(&[0, 171]), "00ab");
/// ```
pub fn encode_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
