/* Whether a Vulkan driver lives through what ggml-vulkan does with descriptor sets.
 *
 * A set names two buffers, and the shader uses the first only. The second is destroyed while the device is idle, and the
 * set is bound again: Vulkan allows that, since no shader uses the dead entry. ggml-vulkan does so as a matter of course:
 * its sets have places for 12 buffers, an operation fills those it needs, and the others keep what was there.
 * Mesa's lavapipe 22.3.6 (Debian 12) takes a reference to every buffer of a set that is bound, so it counts references in
 * freed memory, and its queue's thread dies of it (SIGSEGV) one dispatch later. Mesa 25.0.7 does not.
 *
 * It ends with 0, or by the signal. `build` compiles and runs it, with the shader's words in "descriptors.comp.h".
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vulkan/vulkan.h>

enum { BYTES = 4096, ROUNDS = 6, DESTROYED_BEFORE = 2 };

static const uint32_t SHADER[] =
#include "descriptors.comp.h"
    ;
static VkDevice device;

static void check(VkResult result, const char *what) {
  if (result != VK_SUCCESS) {
    fprintf(stderr, "descriptors: %s failed: %d\n", what, result);
    exit(1);
  }
}

typedef struct {
  VkBuffer buffer;
  VkDeviceMemory memory;
} Storage;

static Storage storage(void) {
  Storage made;
  VkBufferCreateInfo info = {VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = BYTES, .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT};
  check(vkCreateBuffer(device, &info, NULL, &made.buffer), "vkCreateBuffer");
  VkMemoryAllocateInfo memory = {VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .allocationSize = BYTES};
  check(vkAllocateMemory(device, &memory, NULL, &made.memory), "vkAllocateMemory");
  check(vkBindBufferMemory(device, made.buffer, made.memory, 0), "vkBindBufferMemory");
  return made;
}

/* The program's own use of memory that was freed: blocks of zeros of many sizes. */
static void use_freed_memory(void) {
  for (size_t size = 32; size < 700; size += 8) {
    for (int block = 0; block < 12; block++) memset(malloc(size), 0, size);
  }
}

static VkQueue open_device(void) {
  VkApplicationInfo application = {VK_STRUCTURE_TYPE_APPLICATION_INFO, .apiVersion = VK_API_VERSION_1_2};
  VkInstanceCreateInfo info = {VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, .pApplicationInfo = &application};
  VkInstance instance;
  check(vkCreateInstance(&info, NULL, &instance), "vkCreateInstance");
  uint32_t count = 1;
  VkPhysicalDevice physical;
  vkEnumeratePhysicalDevices(instance, &count, &physical);
  check(count == 1 ? VK_SUCCESS : VK_ERROR_INITIALIZATION_FAILED, "vkEnumeratePhysicalDevices");
  VkPhysicalDeviceDriverProperties driver = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES};
  VkPhysicalDeviceProperties2 properties = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, &driver};
  vkGetPhysicalDeviceProperties2(physical, &properties);
  printf("%s, %s\n", properties.properties.deviceName, driver.driverInfo);
  fflush(stdout);
  float priority = 1;
  VkDeviceQueueCreateInfo queues = {VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, .queueCount = 1, .pQueuePriorities = &priority};
  VkDeviceCreateInfo wanted = {VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, .queueCreateInfoCount = 1, .pQueueCreateInfos = &queues};
  check(vkCreateDevice(physical, &wanted, NULL, &device), "vkCreateDevice");
  VkQueue queue;
  vkGetDeviceQueue(device, 0, 0, &queue);
  return queue;
}

static VkPipeline pipeline_of(VkPipelineLayout layout) {
  VkShaderModuleCreateInfo code = {VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, .codeSize = sizeof SHADER, .pCode = SHADER};
  VkShaderModule shader;
  check(vkCreateShaderModule(device, &code, NULL, &shader), "vkCreateShaderModule");
  VkComputePipelineCreateInfo info = {
      VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
      .stage = {VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO, .stage = VK_SHADER_STAGE_COMPUTE_BIT, .module = shader, .pName = "main"},
      .layout = layout,
  };
  VkPipeline pipeline;
  check(vkCreateComputePipelines(device, NULL, 1, &info, NULL, &pipeline), "vkCreateComputePipelines");
  return pipeline;
}

static void fill(VkDescriptorSet set, VkBuffer first, VkBuffer second) {
  VkDescriptorBufferInfo buffers[2] = {{first, 0, VK_WHOLE_SIZE}, {second, 0, VK_WHOLE_SIZE}};
  VkWriteDescriptorSet write = {
      VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
      .dstSet = set,
      .descriptorCount = 2,
      .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
      .pBufferInfo = buffers,
  };
  vkUpdateDescriptorSets(device, 1, &write, 0, NULL);
}

int main(void) {
  VkQueue queue = open_device();
  VkDescriptorSetLayoutBinding bindings[2] = {
      {0, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, VK_SHADER_STAGE_COMPUTE_BIT},
      {1, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, VK_SHADER_STAGE_COMPUTE_BIT},
  };
  VkDescriptorSetLayoutCreateInfo set_info = {VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO, .bindingCount = 2, .pBindings = bindings};
  VkDescriptorSetLayout set_layouts[2];
  check(vkCreateDescriptorSetLayout(device, &set_info, NULL, &set_layouts[0]), "vkCreateDescriptorSetLayout");
  set_layouts[1] = set_layouts[0];
  VkPipelineLayoutCreateInfo layout_info = {VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO, .setLayoutCount = 1, .pSetLayouts = set_layouts};
  VkPipelineLayout layout;
  check(vkCreatePipelineLayout(device, &layout_info, NULL, &layout), "vkCreatePipelineLayout");
  VkPipeline pipeline = pipeline_of(layout);

  VkDescriptorPoolSize size = {VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 4};
  VkDescriptorPoolCreateInfo pool_info = {VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO, .maxSets = 2, .poolSizeCount = 1, .pPoolSizes = &size};
  VkDescriptorPool sets_pool;
  check(vkCreateDescriptorPool(device, &pool_info, NULL, &sets_pool), "vkCreateDescriptorPool");
  VkDescriptorSetAllocateInfo sets_info = {
      VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO, .descriptorPool = sets_pool, .descriptorSetCount = 2, .pSetLayouts = set_layouts};
  VkDescriptorSet sets[2];
  check(vkAllocateDescriptorSets(device, &sets_info, sets), "vkAllocateDescriptorSets");
  VkCommandPoolCreateInfo commands_info = {VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO, .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT};
  VkCommandPool commands_pool;
  check(vkCreateCommandPool(device, &commands_info, NULL, &commands_pool), "vkCreateCommandPool");
  VkCommandBufferAllocateInfo buffer_info = {VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, .commandPool = commands_pool, .commandBufferCount = 1};
  VkCommandBuffer commands;
  check(vkAllocateCommandBuffers(device, &buffer_info, &commands), "vkAllocateCommandBuffers");

  Storage first = storage(), doomed = storage(), other = storage();
  fill(sets[0], first.buffer, doomed.buffer);
  fill(sets[1], first.buffer, other.buffer);
  for (int round = 0; round < ROUNDS; round++) {
    if (round == DESTROYED_BEFORE) {
      vkDestroyBuffer(device, doomed.buffer, NULL);
      vkFreeMemory(device, doomed.memory, NULL);
      use_freed_memory();
    }
    VkCommandBufferBeginInfo begin = {VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    check(vkBeginCommandBuffer(commands, &begin), "vkBeginCommandBuffer");
    vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    for (int set = 0; set < 2; set++) {
      vkCmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, layout, 0, 1, &sets[set], 0, NULL);
      vkCmdDispatch(commands, 1, 1, 1);
    }
    check(vkEndCommandBuffer(commands), "vkEndCommandBuffer");
    VkSubmitInfo submit = {VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &commands};
    check(vkQueueSubmit(queue, 1, &submit, VK_NULL_HANDLE), "vkQueueSubmit");
    check(vkQueueWaitIdle(queue), "vkQueueWaitIdle");
  }
  return 0;
}
