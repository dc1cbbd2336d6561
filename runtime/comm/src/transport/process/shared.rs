//! Queues in shared memory.
//!
//! A queue lies in its sender's outbox: a counter of the messages that were read, and a ring of slots. A slot is two
//! cache lines, with the message's number, for which the receiver waits, a head, and a short body or the place of one. A
//! body may lie in the slot, in the outbox, in the sender's arena, which is shared memory too, or in the sender's own
//! memory.
//!
//! So a receiver reads arenas in place. What lies elsewhere the sender copies once into the outbox. From the sender's own
//! memory the receiver copies it by `process_vm_readv`, one copy instead of two, where a try at the start has shown that
//! the system allows it (`foreign`).
//!
//! Start reading with `sender`, then `receiver`.

mod receiver;
mod sender;

pub(super) use receiver::SharedQueueReceiver;
pub(super) use sender::SharedQueueSender;
