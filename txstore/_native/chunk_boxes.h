/*
 * chunk_boxes.h: rectangular parts of arrays, and copies between them.
 *
 * A box pairs elements of two arrays: it has, for each axis, a count and a stride in bytes in either array. A stride of
 * 0 repeats one element, a negative stride walks backwards.
 */

#ifndef TXSTORE_CHUNK_BOXES_H
#define TXSTORE_CHUNK_BOXES_H

#include <stdint.h>
#include <string.h>

#define MAX_AXES 16

typedef struct {
    int64_t count, from, to; /* strides in bytes */
} axis;

typedef struct {
    int64_t from, to; /* offset of the first element, in bytes */
    int axes;
    axis axis[MAX_AXES];
} box;

/* Drops axes of one element, and merges adjacent axes that one stride covers. */
static void
box_simplify(box *b, int64_t itemsize)
{
    int kept = 0;
    for (int i = 0; i < b->axes; i++) {
        axis a = b->axis[i];
        if (a.count == 1)
            continue;
        if (kept > 0) {
            axis *before = &b->axis[kept - 1];
            if (before->from == a.from * a.count && before->to == a.to * a.count) {
                *before = (axis){before->count * a.count, a.from, a.to};
                continue;
            }
        }
        b->axis[kept++] = a;
    }
    if (kept == 0)
        b->axis[kept++] = (axis){1, itemsize, itemsize};
    b->axes = kept;
}

static int64_t
box_elements(const box *b)
{
    int64_t elements = 1;
    for (int i = 0; i < b->axes; i++)
        elements *= b->axis[i].count;
    return elements;
}

/* Is the box one contiguous range of `size` bytes in both arrays? */
static int
box_is_stretch(const box *b, int64_t itemsize, int64_t size)
{
    const axis *a = &b->axis[0];
    return b->axes == 1 && a->from == itemsize && a->to == itemsize && a->count * itemsize == size;
}

#define COPY_ITEMS(type)                                                                                               \
    for (int64_t i = 0; i < a->count; i++)                                                                             \
        memcpy(to + i * a->to, from + i * a->from, sizeof(type))

static void
copy_axis(uint8_t *to, const uint8_t *from, const axis *a, int64_t itemsize)
{
    if (a->from == itemsize && a->to == itemsize) {
        memcpy(to, from, (size_t)(a->count * itemsize));
        return;
    }
    switch (itemsize) {
    case 1:
        COPY_ITEMS(uint8_t);
        break;
    case 2:
        COPY_ITEMS(uint16_t);
        break;
    case 4:
        COPY_ITEMS(uint32_t);
        break;
    case 8:
        COPY_ITEMS(uint64_t);
        break;
    default:
        for (int64_t i = 0; i < a->count; i++)
            memcpy(to + i * a->to, from + i * a->from, (size_t)itemsize);
    }
}

static void
copy_axes(uint8_t *to, const uint8_t *from, const axis *a, int axes, int64_t itemsize)
{
    if (axes == 1) {
        copy_axis(to, from, a, itemsize);
        return;
    }
    for (int64_t i = 0; i < a->count; i++)
        copy_axes(to + i * a->to, from + i * a->from, a + 1, axes - 1, itemsize);
}

/* Copies a box; `to` and `from` are the starts of the arrays. */
static void
box_copy(const box *b, uint8_t *to, const uint8_t *from, int64_t itemsize)
{
    copy_axes(to + b->to, from + b->from, b->axis, b->axes, itemsize);
}

/* Sets each element of a box's second array to `item`. */
static void
box_fill(const box *b, uint8_t *to, const uint8_t *item, int64_t itemsize)
{
    box filled = *b;
    filled.from = 0;
    for (int i = 0; i < filled.axes; i++)
        filled.axis[i].from = 0;
    box_copy(&filled, to, item, itemsize);
}

static void
fill_items(uint8_t *to, int64_t size, const uint8_t *item, int64_t itemsize)
{
    int64_t done = itemsize < size ? itemsize : size;
    memcpy(to, item, (size_t)done);
    while (done < size) {
        int64_t more = done < size - done ? done : size - done;
        memcpy(to + done, to, (size_t)more);
        done += more;
    }
}

#endif
