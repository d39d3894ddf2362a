//! The structs written by hand have the sizes and offsets that the C compiler gives.

use crate::tools;
use ggml_tqkv::abi::*;
use std::fmt::Write;
use std::mem::{offset_of, size_of};
use std::path::PathBuf;

/// Lines of C that print sizes and offsets, and the text that they must print.
#[derive(Default)]
struct Expected {
    source: String,
    lines: Vec<String>,
}

impl Expected {
    fn size(&mut self, name: &str, size: usize) {
        let _ = writeln!(self.source, "printf(\"{name} %zu\\n\", sizeof(struct {name}));");
        self.lines.push(format!("{name} {size}"));
    }

    fn offset(&mut self, name: &str, field: &str, offset: usize) {
        let _ = writeln!(self.source, "printf(\"{name}.{field} %zu\\n\", offsetof(struct {name}, {field}));");
        self.lines.push(format!("{name}.{field} {offset}"));
    }
}

macro_rules! same {
    ($expected:ident, $ours:ty, $theirs:literal, $($field:ident $name:literal),*) => {
        $expected.size($theirs, size_of::<$ours>());
        $($expected.offset($theirs, $name, offset_of!($ours, $field));)*
    };
}

fn expected(api: i32) -> Expected {
    let mut e = Expected::default();
    same!(e, Tensor, "ggml_tensor", kind "type", buffer "buffer", ne "ne", nb "nb", op "op", op_params "op_params",
        flags "flags", src "src", view_src "view_src", view_offs "view_offs", data "data", name "name", extra "extra");
    same!(e, TypeTraits, "ggml_type_traits", name "type_name", block "blck_size", interleaved "blck_size_interleave",
        block_bytes "type_size", is_quantised "is_quantized", to_float "to_float", from_float "from_float_ref");
    if api == 2 {
        same!(e, BufferTypeFunctions2, "ggml_backend_buffer_type_i", get_name "get_name", alloc_buffer "alloc_buffer",
            get_alignment "get_alignment", get_max_size "get_max_size", get_alloc_size "get_alloc_size", is_host "is_host");
        same!(e, BufferTypeOf<BufferTypeFunctions2>, "ggml_backend_buffer_type", functions "iface", device "device",
            context "context");
    } else {
        same!(e, BufferTypeFunctions3, "ggml_backend_buffer_type_i", get_name "get_name", alloc_buffer "alloc_buffer",
            alloc_buffer_n "alloc_buffer_n", get_alignment "get_alignment", get_max_size "get_max_size",
            get_alloc_size "get_alloc_size", get_alloc_size_n "get_alloc_size_n", is_host "is_host");
        same!(e, BufferTypeOf<BufferTypeFunctions3>, "ggml_backend_buffer_type", functions "iface", device "device",
            context "context");
    }
    same!(e, BufferFunctions, "ggml_backend_buffer_i", free_buffer "free_buffer", get_base "get_base",
        init_tensor "init_tensor", memset_tensor "memset_tensor", set_tensor "set_tensor", get_tensor "get_tensor",
        set_tensor_2d "set_tensor_2d", get_tensor_2d "get_tensor_2d", cpy_tensor "cpy_tensor", clear "clear", reset "reset");
    same!(e, Buffer, "ggml_backend_buffer", functions "iface", kind "buft", context "context", size "size", usage "usage");
    same!(e, BackendFunctions, "ggml_backend_i", get_name "get_name", free "free", set_tensor_async "set_tensor_async",
        get_tensor_async "get_tensor_async", set_tensor_2d_async "set_tensor_2d_async",
        get_tensor_2d_async "get_tensor_2d_async", cpy_tensor_async "cpy_tensor_async", synchronize "synchronize",
        graph_plan_create "graph_plan_create", graph_plan_free "graph_plan_free", graph_plan_update "graph_plan_update",
        graph_plan_compute "graph_plan_compute", graph_compute "graph_compute", event_record "event_record",
        event_wait "event_wait", graph_optimize "graph_optimize");
    same!(e, Backend, "ggml_backend", guid "guid", functions "iface", device "device", context "context");
    same!(e, DeviceProps, "ggml_backend_dev_props", name "name", description "description", memory_free "memory_free",
        memory_total "memory_total", kind "type", device_id "device_id", caps "caps");
    same!(e, DeviceFunctions, "ggml_backend_device_i", get_name "get_name", get_description "get_description",
        get_memory "get_memory", get_type "get_type", get_props "get_props", init_backend "init_backend",
        get_buffer_type "get_buffer_type", get_host_buffer_type "get_host_buffer_type",
        buffer_from_host_ptr "buffer_from_host_ptr", supports_op "supports_op", supports_buft "supports_buft",
        offload_op "offload_op", event_new "event_new", event_free "event_free", event_synchronize "event_synchronize");
    same!(e, Device, "ggml_backend_device", functions "iface", reg "reg", context "context");
    same!(e, RegFunctions, "ggml_backend_reg_i", get_name "get_name", get_device_count "get_device_count",
        get_device "get_device", get_proc_address "get_proc_address");
    same!(e, Reg, "ggml_backend_reg", api_version "api_version", functions "iface", context "context");
    for (name, value) in [
        ("GGML_TYPE_F32", F32),
        ("GGML_TYPE_F16", F16),
        ("GGML_TYPE_I32", I32),
        ("GGML_TYPE_I64", I64),
        ("GGML_STATUS_FAILED", FAILED),
        ("GGML_STATUS_SUCCESS", SUCCESS),
        ("GGML_BACKEND_DEVICE_TYPE_GPU", DEVICE_GPU),
        ("GGML_TENSOR_FLAG_COMPUTE", 16),
        ("GGML_ROPE_TYPE_NEOX", 2),
        ("GGML_MAX_DIMS", DIMS as i32),
        ("GGML_MAX_SRC", SOURCES as i32),
    ] {
        let _ = writeln!(e.source, "printf(\"{name} %d\\n\", (int) {name});");
        e.lines.push(format!("{name} {value}"));
    }
    for (number, name, _) in ggml_tqkv::declared::TYPES {
        let constant = format!("GGML_TYPE_{}", name.to_uppercase());
        let _ = writeln!(e.source, "printf(\"{constant} %d\\n\", (int) {constant});");
        e.lines.push(format!("{constant} {number}"));
    }
    e
}

#[test]
fn structs_are_those_of_the_headers() {
    for (i, headers) in tools::headers().iter().enumerate() {
        let text = std::fs::read_to_string(headers.join("ggml/src/ggml-backend-impl.h")).expect("the header");
        let api = text.lines().find_map(|line| line.trim().strip_prefix("#define GGML_BACKEND_API_VERSION "));
        let api = api.and_then(|api| api.trim().parse().ok()).expect("an interface version");
        let Expected { source, lines } = expected(api);
        let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("layout-{i}.c"));
        let includes = "#include \"ggml-backend-impl.h\"\n#include <stddef.h>\n#include <stdio.h>\n";
        std::fs::write(&file, format!("{includes}int main(void) {{\n{source}return 0;\n}}\n"))
            .expect("a file");
        let program = tools::compile(&format!("layout-{i}"), &file, headers, None);
        let printed = tools::run(&program, &[], &[]).expect("it prints");
        assert_eq!(printed.lines().collect::<Vec<_>>(), lines, "interface version {api}");
    }
}
