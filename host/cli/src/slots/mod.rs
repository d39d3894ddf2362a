//! The slot folder of llama-server with packs in place of states: `tqkv session serve`.
//!
//! ```text
//! client --save, restore--> proxy --the same call--> llama-server --> FOLDER/NAME
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
//! | connections and their limits | `proxy.rs`, `clients.rs` |
//! | what a request asks for, and what is done for it | `request.rs`, `calls.rs`, `upstream.rs` |
//!
//! Not for states that several machines write to one folder: names are taken within one process.

mod busy;
mod calls;
mod clients;
mod copy;
mod folder;
mod keeper;
mod name;
mod proxy;
mod request;
mod upstream;

pub(crate) use folder::{Folder, PackCodes};
pub(crate) use keeper::Keeper;
pub(crate) use proxy::Proxy;
