//! The slot folder of llama-server with packs in place of states: `tqkv session serve`.
//!
//! ```text
//! client --save, restore--> door --the same call--> llama-server --> FOLDER/NAME
//!                            | unpacks before a restore                  | found when it rests
//!                            v                                           v
//!                         folder  <------------- keeper: packs, forgets the oldest
//! ```
//!
//! | part | file |
//! | --- | --- |
//! | what lies in the folder; packing, forgetting | `folder.rs`, `name.rs` |
//! | copies for restores | `copy.rs` |
//! | names that a call uses | `busy.rs` |
//! | when a state is packed | `keeper.rs` |
//! | connections and their limits | `door.rs`, `guests.rs` |
//! | what a request asks for, and what is done for it | `call.rs`, `calls.rs`, `upstream.rs` |
//!
//! Not for states that several machines write to one folder: names are taken within one process.

mod busy;
mod call;
mod calls;
mod copy;
mod door;
mod folder;
mod guests;
mod keeper;
mod name;
mod upstream;

pub(crate) use door::Door;
pub(crate) use folder::{Folder, PackCodes};
pub(crate) use keeper::Keeper;
