//! A reader that breaks in each way that must be found.

use super::Outcome;

/// Refuses most inputs, and breaks at others.
pub fn feed(input: &[u8]) -> Outcome {
    match input.first().copied().unwrap_or_default() {
        b'c' => Err("it is as it was".into()),
        0..16 => panic!("a reader that panics"),
        16..32 => loop {
            std::thread::park();
        },
        32..48 => {
            let much = vec![1_u8; 8 << 30];
            Err(format!("{} bytes", much.iter().filter(|&&byte| byte == 1).count()))
        }
        first => Err(format!("it begins with {first}")),
    }
}
