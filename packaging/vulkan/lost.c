/* A Vulkan layer whose device is lost: after LOST_AFTER submissions each further one fails with VK_ERROR_DEVICE_LOST, as
 * it does when a driver resets a card. With LOST_ONCE, a file that is not there, only in the first process that comes so
 * far: it makes the file. With HEAP_MIB the device has so much memory at most. Nothing else is changed. tests/gpu names
 * it in VK_INSTANCE_LAYERS; `build` compiles it.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <vulkan/vk_layer.h>
#include <vulkan/vulkan.h>

#define EXPORT __attribute__((visibility("default")))

static PFN_vkGetInstanceProcAddr next_instance_function;
static PFN_vkGetDeviceProcAddr next_device_function;
static PFN_vkQueueSubmit next_submit;
static PFN_vkGetPhysicalDeviceMemoryProperties2 next_memory;
static atomic_long submissions;

static int is_lost(void) {
  static atomic_int lost;
  const char *after = getenv("LOST_AFTER"), *once = getenv("LOST_ONCE");
  if (after == NULL || atomic_fetch_add(&submissions, 1) < atol(after)) return 0;
  if (once == NULL || atomic_load(&lost)) return 1;
  int file = open(once, O_CREAT | O_EXCL | O_WRONLY, 0600);
  if (file >= 0) {
    close(file);
    atomic_store(&lost, 1);
  }
  return file >= 0;
}

static VkResult lost_submit(VkQueue queue, uint32_t count, const VkSubmitInfo *submits, VkFence fence) {
  if (is_lost()) return VK_ERROR_DEVICE_LOST;
  return next_submit(queue, count, submits, fence);
}

static void small_memory(VkPhysicalDevice physical, VkPhysicalDeviceMemoryProperties2 *found) {
  next_memory(physical, found);
  const char *text = getenv("HEAP_MIB");
  if (text == NULL) return;
  VkDeviceSize most = (VkDeviceSize)atol(text) << 20;
  for (uint32_t heap = 0; heap < found->memoryProperties.memoryHeapCount; heap++) {
    VkMemoryHeap *one = &found->memoryProperties.memoryHeaps[heap];
    if (one->size > most) one->size = most;
  }
  for (VkBaseOutStructure *more = found->pNext; more != NULL; more = more->pNext) {
    if (more->sType != VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT) continue;
    VkPhysicalDeviceMemoryBudgetPropertiesEXT *budget = (void *)more;
    for (uint32_t heap = 0; heap < VK_MAX_MEMORY_HEAPS; heap++) {
      if (budget->heapBudget[heap] > most) budget->heapBudget[heap] = most;
    }
  }
}

static VkResult lost_create_instance(const VkInstanceCreateInfo *info, const VkAllocationCallbacks *memory, VkInstance *made) {
  VkLayerInstanceCreateInfo *link = (VkLayerInstanceCreateInfo *)info->pNext;
  while (link->sType != VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO || link->function != VK_LAYER_LINK_INFO) {
    link = (VkLayerInstanceCreateInfo *)link->pNext;
  }
  next_instance_function = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
  link->u.pLayerInfo = link->u.pLayerInfo->pNext;
  VkResult result = ((PFN_vkCreateInstance)next_instance_function(NULL, "vkCreateInstance"))(info, memory, made);
  if (result == VK_SUCCESS) next_memory = (PFN_vkGetPhysicalDeviceMemoryProperties2)next_instance_function(*made, "vkGetPhysicalDeviceMemoryProperties2");
  return result;
}

static VkResult lost_create_device(VkPhysicalDevice physical, const VkDeviceCreateInfo *info, const VkAllocationCallbacks *memory, VkDevice *made) {
  VkLayerDeviceCreateInfo *link = (VkLayerDeviceCreateInfo *)info->pNext;
  while (link->sType != VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO || link->function != VK_LAYER_LINK_INFO) {
    link = (VkLayerDeviceCreateInfo *)link->pNext;
  }
  PFN_vkGetInstanceProcAddr instance_function = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
  next_device_function = link->u.pLayerInfo->pfnNextGetDeviceProcAddr;
  link->u.pLayerInfo = link->u.pLayerInfo->pNext;
  VkResult result = ((PFN_vkCreateDevice)instance_function(NULL, "vkCreateDevice"))(physical, info, memory, made);
  if (result == VK_SUCCESS) next_submit = (PFN_vkQueueSubmit)next_device_function(*made, "vkQueueSubmit");
  return result;
}

static PFN_vkVoidFunction own(const char *name);

EXPORT PFN_vkVoidFunction vkGetDeviceProcAddr(VkDevice device, const char *name) {
  PFN_vkVoidFunction found = own(name);
  return found != NULL ? found : next_device_function(device, name);
}

EXPORT PFN_vkVoidFunction vkGetInstanceProcAddr(VkInstance instance, const char *name) {
  PFN_vkVoidFunction found = own(name);
  return found != NULL ? found : next_instance_function(instance, name);
}

static PFN_vkVoidFunction own(const char *name) {
  if (strcmp(name, "vkGetInstanceProcAddr") == 0) return (PFN_vkVoidFunction)vkGetInstanceProcAddr;
  if (strcmp(name, "vkGetDeviceProcAddr") == 0) return (PFN_vkVoidFunction)vkGetDeviceProcAddr;
  if (strcmp(name, "vkCreateInstance") == 0) return (PFN_vkVoidFunction)lost_create_instance;
  if (strcmp(name, "vkCreateDevice") == 0) return (PFN_vkVoidFunction)lost_create_device;
  if (strcmp(name, "vkGetPhysicalDeviceMemoryProperties2") == 0) return (PFN_vkVoidFunction)small_memory;
  if (strcmp(name, "vkQueueSubmit") == 0) return (PFN_vkVoidFunction)lost_submit;
  return NULL;
}
