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
//! | what lies in the folder; packing, giving back, forgetting | `folder.rs` |
//! | names that a call uses | `busy.rs` |
//! | when a state is packed | `keeper.rs` |
//! | the calls | `http.rs` |
//!
//! Not for states that several machines write to one folder: names are taken within one process.

mod busy;
mod folder;
mod http;
mod keeper;

pub(crate) use folder::{Codes, Folder};
pub(crate) use http::Door;
pub(crate) use keeper::Keeper;
