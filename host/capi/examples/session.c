/* Packs a saved state of llama.cpp, checks the pack, and writes the state that it holds.
 *
 *   cc session.c -I ../include libtqkv_capi.a -lpthread -ldl -lm -o session && ./session chat.bin chat.tqs back.bin
 *
 * With a file of `tqkv basis` as fourth argument, the pack is in that basis, at 1.1 bits per value.
 */
#define TQKV_SESSION
#include <stdio.h>
#include <tqkv.h>

static int failed(const char *what, tqkv_status status) {
    if (status == TQKV_OK) {
        return 0;
    }
    fprintf(stderr, "%s: %s: %s\n", what, tqkv_status_name((uint32_t)status), tqkv_last_error());
    return 1;
}

int main(int count, char **paths) {
    tqkv_session_info info;
    tqkv_basis *basis = NULL;
    int wrong;
    if (count != 4 && count != 5) {
        fprintf(stderr, "usage: session STATE PACK BACK [BASIS]\n");
        return 2;
    }
    if (count == 5 && failed("basis", tqkv_basis_load(paths[4], &basis))) {
        return 1;
    }
    wrong = failed("pack", basis ? tqkv_session_pack_basis_file(paths[1], paths[2], basis, 1.1f)
                                 : tqkv_session_pack_file(paths[1], paths[2], "t4", 0)) ||
            failed("inspect", tqkv_session_inspect_file(paths[2], &info)) ||
            failed("unpack", tqkv_session_unpack_file(paths[2], paths[3], basis));
    tqkv_basis_free(basis);
    if (wrong) {
        return 1;
    }
    printf("%zu of %zu bytes\n", info.pack_bytes, info.state_bytes);
    return 0;
}
